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
-- deny too_complex: a long number is looked for
SELECT strpos((SELECT string_agg(repeat('0', 1000), '') FROM generate_series(1, 2000) AS g), CAST(CAST('1e60000' AS numeric) AS text));
-- deny too_complex: the same after arithmetic
SELECT strpos(title, CAST(1e60000 * 1 AS text)) FROM books;
-- deny too_complex: rows of rows
WITH r0 AS (SELECT CAST('x' AS text) AS s), r1 AS (SELECT ROW(s, s) AS s FROM r0), r2 AS (SELECT ROW(s, s) AS s FROM r1), r3 AS (SELECT ROW(s, s) AS s FROM r2), r4 AS (SELECT ROW(s, s) AS s FROM r3), r5 AS (SELECT ROW(s, s) AS s FROM r4), r6 AS (SELECT ROW(s, s) AS s FROM r5), r7 AS (SELECT ROW(s, s) AS s FROM r6), r8 AS (SELECT ROW(s, s) AS s FROM r7), r9 AS (SELECT ROW(s, s) AS s FROM r8), r10 AS (SELECT ROW(s, s) AS s FROM r9), r11 AS (SELECT ROW(s, s) AS s FROM r10), r12 AS (SELECT ROW(s, s) AS s FROM r11), r13 AS (SELECT ROW(s, s) AS s FROM r12), r14 AS (SELECT ROW(s, s) AS s FROM r13), r15 AS (SELECT ROW(s, s) AS s FROM r14), r16 AS (SELECT ROW(s, s) AS s FROM r15), r17 AS (SELECT ROW(s, s) AS s FROM r16), r18 AS (SELECT ROW(s, s) AS s FROM r17), r19 AS (SELECT ROW(s, s) AS s FROM r18), r20 AS (SELECT ROW(s, s) AS s FROM r19), r21 AS (SELECT ROW(s, s) AS s FROM r20), r22 AS (SELECT ROW(s, s) AS s FROM r21) SELECT LENGTH(CAST(s AS text)) FROM r22;
-- deny too_complex: doubled by scalar subqueries
WITH a0 AS (SELECT CAST('x' AS text) AS s), a1 AS (SELECT (SELECT s FROM a0) || (SELECT s FROM a0) AS s), a2 AS (SELECT (SELECT s FROM a1) || (SELECT s FROM a1) AS s), a3 AS (SELECT (SELECT s FROM a2) || (SELECT s FROM a2) AS s), a4 AS (SELECT (SELECT s FROM a3) || (SELECT s FROM a3) AS s), a5 AS (SELECT (SELECT s FROM a4) || (SELECT s FROM a4) AS s), a6 AS (SELECT (SELECT s FROM a5) || (SELECT s FROM a5) AS s), a7 AS (SELECT (SELECT s FROM a6) || (SELECT s FROM a6) AS s), a8 AS (SELECT (SELECT s FROM a7) || (SELECT s FROM a7) AS s), a9 AS (SELECT (SELECT s FROM a8) || (SELECT s FROM a8) AS s), a10 AS (SELECT (SELECT s FROM a9) || (SELECT s FROM a9) AS s), a11 AS (SELECT (SELECT s FROM a10) || (SELECT s FROM a10) AS s), a12 AS (SELECT (SELECT s FROM a11) || (SELECT s FROM a11) AS s), a13 AS (SELECT (SELECT s FROM a12) || (SELECT s FROM a12) AS s), a14 AS (SELECT (SELECT s FROM a13) || (SELECT s FROM a13) AS s), a15 AS (SELECT (SELECT s FROM a14) || (SELECT s FROM a14) AS s), a16 AS (SELECT (SELECT s FROM a15) || (SELECT s FROM a15) AS s), a17 AS (SELECT (SELECT s FROM a16) || (SELECT s FROM a16) AS s), a18 AS (SELECT (SELECT s FROM a17) || (SELECT s FROM a17) AS s), a19 AS (SELECT (SELECT s FROM a18) || (SELECT s FROM a18) AS s), a20 AS (SELECT (SELECT s FROM a19) || (SELECT s FROM a19) AS s), a21 AS (SELECT (SELECT s FROM a20) || (SELECT s FROM a20) AS s), a22 AS (SELECT (SELECT s FROM a21) || (SELECT s FROM a21) AS s), a23 AS (SELECT (SELECT s FROM a22) || (SELECT s FROM a22) AS s), a24 AS (SELECT (SELECT s FROM a23) || (SELECT s FROM a23) AS s), a25 AS (SELECT (SELECT s FROM a24) || (SELECT s FROM a24) AS s) SELECT LENGTH(s) FROM a25;
-- deny too_complex: two texts that make each other longer
WITH RECURSIVE t(n, a, b) AS (SELECT 1, CAST('x' AS text), CAST('x' AS text) UNION ALL SELECT n + 1, b, a || b FROM t WHERE n < 36) SELECT MAX(LENGTH(b)) FROM t;
-- deny too_complex: doubled in a recursion, within a subquery
WITH RECURSIVE t(n, s) AS (SELECT 1, CAST('x' AS text) UNION ALL SELECT n + 1, (SELECT t.s) || (SELECT t.s) FROM t WHERE n < 30) SELECT MAX(LENGTH(s)) FROM t;
-- deny too_complex: the same by a name that stands for a number elsewhere
WITH RECURSIVE t(n, s) AS (SELECT 1, CAST('x' AS text) UNION ALL SELECT t.n + 1, q.n || q.n FROM t, LATERAL (SELECT t.s AS n) AS q WHERE t.n < 30) SELECT MAX(LENGTH(s)) FROM t;
-- deny too_complex: gathered in a recursion
WITH RECURSIVE t(n, s) AS (SELECT 1, CAST('x' AS text) UNION ALL SELECT n + 1, (SELECT string_agg(t.s || g::text, '') FROM generate_series(1, 2) AS g) FROM t WHERE n < 30) SELECT MAX(LENGTH(s)) FROM t;
-- deny too_complex: quotes doubled by JSON again and again
SELECT LENGTH(s) FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT CAST(json_agg(s) AS text) AS s FROM (SELECT '"' AS s) AS j0) AS j1) AS j2) AS j3) AS j4) AS j5) AS j6) AS j7) AS j8) AS j9) AS j10) AS j11) AS j12) AS j13) AS j14) AS j15) AS j16) AS j17) AS j18) AS j19) AS j20) AS j21) AS d;
-- deny too_complex: each element of an array compared with each of another
SELECT ARRAY(SELECT g FROM generate_series(1, 60000) AS g) && ARRAY(SELECT g FROM generate_series(100001, 160000) AS g);
-- deny too_complex: the same with arrays that were gathered before
WITH a AS (SELECT array_agg(g) AS x FROM generate_series(1, 60000) AS g) SELECT a.x @> b.x FROM a CROSS JOIN a AS b;
-- deny too_complex: a path that compares each with each
SELECT jsonb_path_exists(jsonb_build_object('a', (SELECT jsonb_agg(g) FROM generate_series(1, 9000) AS g), 'b', (SELECT jsonb_agg(g) FROM generate_series(1, 9000) AS g)), 'strict $ ? (@.a[*] == @.b[*])');
-- deny too_complex: a pattern in a gathered text
SELECT regexp_replace((SELECT string_agg(title, '') FROM books), 'a', 'b', 'g');
-- allow: a pattern in the column of a CTE, and arrays in short
WITH t AS (SELECT LOWER(title) AS name FROM books) SELECT name FROM t WHERE name ~ '[a-z]' AND ARRAY[name] && ARRAY['a', 'update your garden'];
-- allow: a path with its depth
WITH RECURSIVE t(n, root, path) AS (SELECT 1, 'a'::text, 'a'::text UNION ALL SELECT t.n + 1, t.root, t.path || '/' || t.root || CAST(t.n AS text) FROM t WHERE t.n < 4) SELECT path FROM t;
-- allow: words looked for in a text
SELECT title FROM books WHERE to_tsvector('simple', title) @@ to_tsquery('simple', 'garden') OR to_tsvector('simple', title) @@ plainto_tsquery('simple', genre);
-- deny too_complex: a pattern of SUBSTRING in a gathered text
SELECT substring((SELECT string_agg(title, '') FROM books) from 'a+b');
-- deny too_complex: a path behind @@
SELECT (SELECT jsonb_agg(g) FROM generate_series(1, 9000) AS g) @@ '$.a[*] == $.b[*]';
-- deny too_complex: a pattern in a gathered text that has been handed on
WITH a AS (SELECT string_agg(title, '') AS g FROM books), b AS (SELECT LOWER(g) AS h FROM a) SELECT h ~ 'a' FROM b;
-- allow: a pattern in the column of a CTE, which is gathered later
WITH t AS (SELECT genre, LOWER(title) AS name FROM books), u AS (SELECT genre, name AS n FROM t) SELECT genre, string_agg(n, ', ') FROM u WHERE n ~ '[a-z]' GROUP BY genre ORDER BY genre;
-- allow: parts of a text by pattern and by place
SELECT substring(title from 'T.e'), substring(title from position(' ' in title) + 1), substring(title, g, 1), string_agg(genre, '') FROM books, generate_series(1, 2) AS g GROUP BY title, g ORDER BY title, g;
-- deny too_complex: a long number is repeated
SELECT LENGTH(repeat(CAST(1e60000 AS text), 1000));
-- deny too_complex: the same out of a text
SELECT LENGTH(repeat(CAST(CAST('1e60000' AS numeric) AS text), 1000));
-- deny too_complex: doubled by LATERAL again and again
SELECT LENGTH(a25.s) FROM (SELECT CAST('x' AS text) AS s) AS a0, LATERAL (SELECT a0.s || a0.s AS s) AS a1, LATERAL (SELECT a1.s || a1.s AS s) AS a2, LATERAL (SELECT a2.s || a2.s AS s) AS a3, LATERAL (SELECT a3.s || a3.s AS s) AS a4, LATERAL (SELECT a4.s || a4.s AS s) AS a5, LATERAL (SELECT a5.s || a5.s AS s) AS a6, LATERAL (SELECT a6.s || a6.s AS s) AS a7, LATERAL (SELECT a7.s || a7.s AS s) AS a8, LATERAL (SELECT a8.s || a8.s AS s) AS a9, LATERAL (SELECT a9.s || a9.s AS s) AS a10, LATERAL (SELECT a10.s || a10.s AS s) AS a11, LATERAL (SELECT a11.s || a11.s AS s) AS a12, LATERAL (SELECT a12.s || a12.s AS s) AS a13, LATERAL (SELECT a13.s || a13.s AS s) AS a14, LATERAL (SELECT a14.s || a14.s AS s) AS a15, LATERAL (SELECT a15.s || a15.s AS s) AS a16, LATERAL (SELECT a16.s || a16.s AS s) AS a17, LATERAL (SELECT a17.s || a17.s AS s) AS a18, LATERAL (SELECT a18.s || a18.s AS s) AS a19, LATERAL (SELECT a19.s || a19.s AS s) AS a20, LATERAL (SELECT a20.s || a20.s AS s) AS a21, LATERAL (SELECT a21.s || a21.s AS s) AS a22, LATERAL (SELECT a22.s || a22.s AS s) AS a23, LATERAL (SELECT a23.s || a23.s AS s) AS a24, LATERAL (SELECT a24.s || a24.s AS s) AS a25;
-- allow: one LATERAL after the other
SELECT b.title, x.a, y.n FROM books b, LATERAL (SELECT b.title || ' ' || b.genre AS a) AS x, LATERAL (SELECT LENGTH(x.a) AS n) AS y, generate_series(1, 2) AS g ORDER BY b.id, g;
-- allow: groups as JSON
SELECT genre, json_agg(json_build_object('title', title, 'price', price)) FROM books GROUP BY genre ORDER BY genre;

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
-- deny too_complex: keys taken out of an object that was gathered from rows, one by one
SELECT (SELECT jsonb_agg(g::text) FROM generate_series(1, 60000) AS g) - ARRAY(SELECT g::text FROM generate_series(1, 60000) AS g);
-- allow: sums and dates of rows taken from one another
SELECT SUM(price) - MIN(pages) AS d, MAX(lent_on) - MIN(lent_on) AS days FROM books, loans;

-- NOT before IN, BETWEEN and the like, beside an operator.
-- allow: on either side
SELECT id NOT IN (1, 2) = true, true = id NOT IN (1, 2), (pages > 200) <> id NOT BETWEEN 1 AND 2, id NOT IN (7) IS TRUE FROM books ORDER BY id;
-- allow: turned bits
SELECT ~ -1, - ~ 1, ~ ~ 1, ~ id FROM books;
