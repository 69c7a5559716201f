-- For PostgreSQL.

-- allow: E'…' without escapes
SELECT E'it''s; DROP TABLE books; --' AS t;
-- allow: a filter, a list of values, a series
SELECT COUNT(*) FILTER (WHERE pages > 200) AS long_ones FROM books;
-- allow: values in FROM
SELECT v.k FROM (VALUES ('a', 1), ('b', 2)) AS v(k, n);
-- allow: a series in FROM
SELECT n FROM generate_series(1, 3) AS g(n);
-- allow: LATERAL
SELECT m.name, t.n FROM members m CROSS JOIN LATERAL (SELECT COUNT(*) AS n FROM loans l WHERE l.member_id = m.id) t ORDER BY m.id;
-- allow: casts and dates
SELECT date_trunc('month', lent_on)::date AS month, extract(year FROM lent_on) AS y FROM loans ORDER BY id;
-- allow: a whole row that hides nothing
SELECT row_to_json(b) FROM books b WHERE id = 1;
-- allow: the schema's own name
SELECT public.books.title FROM public.books;
-- allow: Chinese names in quotes
SELECT "读者" FROM "借阅记录" WHERE "天数" > 5;

-- deny not_select: a CTE that writes
DELETE FROM books RETURNING *;
-- deny structure_not_allowed: the same behind WITH
WITH gone AS (DELETE FROM books RETURNING id) SELECT COUNT(*) FROM gone;
-- deny structure_not_allowed: makes a table
SELECT * INTO copy_of_books FROM books;
-- deny not_select: runs a program
COPY (SELECT 1) TO PROGRAM 'touch /tmp/t2s_program';
-- deny function_not_allowed: reads a file
SELECT pg_read_file('/etc/hostname');
-- deny function_not_allowed: waits
SELECT pg_sleep(1);
-- deny function_not_allowed: a lock
SELECT pg_advisory_lock(1);
-- deny function_not_allowed: a setting
SELECT set_config('transaction_read_only', 'off', false);
-- deny table_not_allowed: a catalog without its schema
SELECT relname FROM pg_class;
-- deny catalogue_not_allowed: a catalog with it
SELECT relname FROM pg_catalog.pg_class;
-- deny column_not_allowed: a whole row
SELECT row_to_json(m) FROM members m;
-- deny column_not_allowed: a whole row under an alias of its own name
SELECT row_to_json(m) AS m FROM members m;
-- deny column_not_allowed: a whole row as text
SELECT m::text FROM members m;
-- deny structure_not_allowed: a field of a whole row
SELECT (m).pin FROM members m;
-- deny structure_not_allowed: an object of the catalog
SELECT 'wages'::regclass;
-- deny column_not_allowed: a system column
SELECT ctid FROM books;
-- deny structure_not_allowed: an escape that could hide a quote
SELECT E'a\\' AS t;
-- deny column_not_allowed: a whole row in FROM
SELECT q.* FROM members m, LATERAL row_to_json(m) q;
-- deny column_not_allowed: the star of a whole row
SELECT ROW(m.*) FROM members m;
-- deny column_not_allowed: a whole row compared
SELECT 1 FROM members m WHERE m IS NOT NULL;
-- deny unknown_table: the star of an outer row
SELECT q.* FROM members m, LATERAL (SELECT m.*) q;
-- deny column_not_allowed: in a list of values
SELECT v.a FROM (VALUES ((SELECT pin FROM members LIMIT 1))) AS v(a);
-- deny too_complex: brackets that take for ever to read
SELECT [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]];
-- allow: a column that has the name of its table's alias
SELECT name FROM members name ORDER BY name.id;
-- deny column_not_allowed: a whole row beside a column without a name
SELECT to_jsonb(m) FROM members m, (SELECT 'm') t;
-- deny column_not_allowed: the same as text
SELECT m::text FROM members AS m, (SELECT ('m')::text) AS t;
-- deny column_not_allowed: the same out of a CTE
WITH t AS (SELECT 'm') SELECT json_agg(m) FROM members m, t;
-- deny column_not_allowed: a whole row where two later columns of its name are one
SELECT 1 FROM members m JOIN books b ON m::text::int = 1 JOIN (SELECT 1 AS m) x ON true JOIN (SELECT 1 AS m) y USING (m);
-- deny column_not_allowed: a function written as a column of a table that comes later
SELECT (SELECT MAX(b.id) FROM books b JOIN loans l ON m.row_to_json::text::int = 1 JOIN (SELECT 'x' AS row_to_json) m ON true) FROM members m;
-- deny structure_not_allowed: a whole row in an order behind brackets
(SELECT name, CAST('m' AS text) FROM members m) ORDER BY m::text::int;
-- deny column_not_allowed: where a row lies, by a name that the list gives
SELECT ctid AS ctid, xmin AS xmin, tableoid AS tableoid FROM members;
-- deny column_not_allowed: the same in the order
SELECT name AS ctid FROM members ORDER BY ctid;
-- deny column_not_allowed: a whole row beside an outer column without a name
SELECT (SELECT to_jsonb(m) FROM members m LIMIT 1) FROM (SELECT 'm') t;

-- Texts that no server stops working on.
-- allow: texts of a stated length
SELECT lpad(id::text, 6, '0'), repeat('*', 5), format('%s: %-20s|', title, genre) FROM books;
-- allow: a column looked for
SELECT title FROM books WHERE title NOT ILIKE '%' || genre || '%' AND title ILIKE ANY (ARRAY['%a%', '%红%']);
-- allow: parts of a text
SELECT split_part(title, ' ', 1), translate(title, 'abc', 'xyz'), regexp_replace(title, '[^a-z]', '', 'g'), position('a' in title), btrim(title) FROM books;
-- allow: groups put together
SELECT string_agg(title, ', ' ORDER BY id), array_to_string(array_agg(title), ', ') FROM books;
-- allow: a path that grows in a recursion
WITH RECURSIVE t AS (SELECT 1 AS n, 'a'::text AS path UNION ALL SELECT b.id, path || '/' || title FROM t JOIN books b ON b.id = t.n + 1) SELECT path FROM t;
-- deny too_complex: a long text is repeated
SELECT repeat('a', 300000000);
-- deny too_complex: a format with a width
SELECT format('%100000s', title) FROM books;
-- deny too_complex: a width that comes later
SELECT format('%*s', 100000, title) FROM books;
-- deny too_complex: a format from a column
SELECT format(title, title) FROM books;
-- deny too_complex: a text filled up
SELECT lpad(title, 100000) FROM books;
-- deny too_complex: a type that fills up
SELECT CAST('a' AS CHAR(10000000));
-- deny too_complex: bits that fill up
SELECT 1::bit(80000000);
-- deny too_complex: a long text is looked for 0
SELECT strpos(title, 'b' || repeat('a', 900)) FROM books;
-- deny too_complex: a long text is looked for 1
SELECT replace(title, repeat('a', 900), 'b') FROM books;
-- deny too_complex: a long text is looked for 2
SELECT split_part(title, repeat('a', 900), 1) FROM books;
-- deny too_complex: a long text is looked for 3
SELECT translate(title, repeat('a', 900), 'b') FROM books;
-- deny too_complex: a long text is looked for 4
SELECT title ILIKE repeat('a', 900) FROM books;
-- deny too_complex: a long text is looked for 5
SELECT title ~ repeat('a', 900) FROM books;
-- deny too_complex: a long text is looked for 6
SELECT title ~* repeat('a', 900) FROM books;
-- deny too_complex: a long text is looked for 7
SELECT title !~ repeat('a', 900) FROM books;
-- deny too_complex: a long text is looked for 8
SELECT title SIMILAR TO repeat('a', 900) FROM books;
-- deny too_complex: a long text is looked for 9
SELECT regexp_matches(title, repeat('a', 900)) FROM books;
-- deny too_complex: a long text is looked for 10
SELECT regexp_split_to_array(title, repeat('a', 900)) FROM books;
-- deny too_complex: a long text is looked for 11
SELECT string_to_array(title, repeat('a', 900)) FROM books;
-- deny too_complex: a long text is looked for 12
SELECT position(repeat('a', 900) in title) FROM books;
-- deny too_complex: a long text is looked for 13
SELECT btrim(title, repeat('a', 900)) FROM books;
-- deny too_complex: a long text is looked for 14
SELECT trim(both repeat('a', 900) from title) FROM books;
-- deny too_complex: a long text is looked for 15
SELECT title LIKE ANY (ARRAY[repeat('a', 900)]) FROM books;
-- deny too_complex: a long text is looked for 16
SELECT string_agg(title, repeat('a', 900)) FROM books;
-- deny too_complex: a long text is looked for 17
SELECT array_to_string(array_agg(title), repeat('a', 900)) FROM books;
-- deny too_complex: a long text is looked for 18
SELECT regexp_replace(title, '', repeat('a', 900), 'g') FROM books;
-- deny too_complex: a column of values is looked for
SELECT strpos('x', v.a) FROM (VALUES ('aaa')) AS v(a);
-- deny too_complex: a column of LATERAL is looked for
SELECT strpos('b', x.a) FROM books b, LATERAL (SELECT b.title || b.title AS a) x;

-- What the server takes, and gives the same for as for the statement that was sent.
-- allow: JSON behind an arrow, within a function
SELECT json_array_length(j->'l'), json_typeof(j->'l'), to_json(j->>'l') FROM (SELECT CAST('{"l":[1,2]}' AS JSON) AS j) AS d;
-- allow: JSON behind an arrow, in FROM
SELECT x FROM (SELECT CAST('{"l":[1,2]}' AS JSON) AS j) AS d, json_array_elements(j->'l') AS x;
-- allow: logarithms and hexadecimals
SELECT to_hex(id), log10(price + 1), log(2, 8), log(10) FROM books ORDER BY id;
-- allow: parts of dates, of each type
SELECT date_part('year', lent_on), extract(year FROM lent_on) FROM loans ORDER BY id;
-- allow: digests, JSON written and changed
SELECT sha256('a'::bytea), jsonb_pretty('{"a":1}'::jsonb), jsonb_set('{"a":1}'::jsonb, '{a}', '2');
-- allow: none of an array
SELECT title FROM books WHERE genre <> ALL(ARRAY['novel', 'crime']);
-- allow: numbered elements
SELECT t.x, t.n FROM unnest(ARRAY['a', 'b']) WITH ORDINALITY AS t(x, n) ORDER BY n;
-- allow: an absolute value by its sign
SELECT @ -5 + 3 AS a, 2 * @ -5 AS b;
-- deny syntax: a text too many
SELECT interval '1' 'c' day AS v;
-- deny syntax: a text too many, without a name
SELECT interval '1' 'c' day;
-- deny syntax: a name that the server cuts, so that it is an alias
SELECT xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx2 FROM members AS xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx1, (SELECT 1+1) AS o;
-- allow: a long name in Chinese for a CTE
WITH 借借借借借借借借借借借借借借借借借借借借 AS (SELECT id FROM books) SELECT COUNT(*) AS n FROM 借借借借借借借借借借借借借借借借借借借借;
