-- For SQLite.

-- allow: text in double quotes, as SQLite takes it
SELECT title FROM books WHERE genre = "novel";
-- allow: names in double quotes
SELECT "title" FROM "books" ORDER BY "id";
-- allow: its functions of dates
SELECT strftime('%Y', lent_on) AS y, julianday(lent_on) - julianday('2025-01-01') AS d FROM loans ORDER BY id;

-- deny not_select: a setting
PRAGMA query_only = OFF;
-- deny not_select: another file
ATTACH DATABASE '/tmp/t2s_other.db' AS other;
-- deny catalogue_not_allowed: the catalog
SELECT sql FROM sqlite_master;
-- deny structure_not_allowed: a table behind IN
SELECT 1 WHERE 7777 IN wages;
-- deny structure_not_allowed: the same in quotes
SELECT 1 WHERE 7777 IN "wages";
-- deny function_not_allowed: code from a file
SELECT load_extension('/tmp/x.so');
-- deny function_not_allowed: the catalog by a function
SELECT * FROM pragma_table_info('wages');
-- deny column_not_allowed: a hidden column in quotes
SELECT "pin" FROM members;
-- deny column_not_allowed: a key by another name
SELECT rowid FROM books;
-- deny column_not_allowed: the key by another name, which the list gives
SELECT rowid AS rowid FROM emp;
-- deny column_not_allowed: the same by its oldest name
SELECT oid AS oid, name FROM emp;
-- deny column_not_allowed: the same in a condition
SELECT name, 1 AS rowid FROM emp WHERE rowid = 7777;
-- deny column_not_allowed: the same in USING
SELECT name FROM emp JOIN (SELECT 7777 AS rowid) x USING (rowid);
-- allow: a name that the list gives, in a condition
SELECT title, price * 2 AS twice FROM books WHERE twice > 30;
-- allow: a CTE in other letters
WITH Wages AS (SELECT 1 AS id) SELECT * FROM wages;

-- A name that nothing in a CTE has is looked up where the CTE is used.
-- deny column_not_allowed: a hidden column of where a CTE is used, beside a function in FROM
WITH c AS (SELECT pin AS v FROM json_each('[1]')) SELECT (SELECT v FROM c) FROM members;
-- deny column_not_allowed: the same, beside VALUES
WITH c AS (SELECT pin AS v FROM (VALUES (1))) SELECT name, (SELECT v FROM c) FROM members;
-- deny column_not_allowed: the same, beside VALUES with a name
WITH c(v) AS (SELECT pin FROM (VALUES (1)) AS q) SELECT name FROM members WHERE (SELECT v FROM c) = 'SECRET-1';
-- deny column_not_allowed: the same, beside a subquery that gives all of a function
WITH c AS (SELECT pin AS v FROM (SELECT * FROM json_each('[1]'))) SELECT name, (SELECT v FROM c) FROM members;
-- deny column_not_allowed: the same, in a subquery of the CTE
WITH c AS (SELECT (SELECT pin FROM json_each('[1]')) AS v) SELECT name, (SELECT v FROM c) FROM members;
-- deny column_not_allowed: the same, in an EXISTS of the CTE
WITH c AS (SELECT 1 AS v WHERE EXISTS (SELECT 1 FROM json_tree('[1]') j WHERE pin = 'SECRET-1')) SELECT name, (SELECT v FROM c) FROM members;
-- deny column_not_allowed: the same, in a CTE of a CTE
WITH c AS (WITH d AS (SELECT pin AS v FROM json_each('[1]')) SELECT (SELECT v FROM d) AS v) SELECT name, (SELECT v FROM c) FROM members;
-- deny column_not_allowed: the same, in a recursive CTE
WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT pin FROM c WHERE n = 1) SELECT name, (SELECT MAX(n) FROM c) FROM members;
-- deny column_not_allowed: the same, in a recursive CTE whose columns are named
WITH RECURSIVE c(n) AS (VALUES (1) UNION ALL SELECT pin FROM c WHERE n = 1) SELECT name, (SELECT MAX(n) FROM c) FROM members;
-- deny column_not_allowed: the same, with the name of the source before it
WITH c AS (SELECT e.uid AS v FROM (SELECT 1 + 1) e) SELECT e.name, (SELECT MAX(v) FROM c) FROM emp e;
-- deny column_not_allowed: the same, with the name of a function before it
WITH c AS (SELECT members.pin AS v FROM json_each('[1]') AS members) SELECT name, (SELECT MAX(v) FROM c) FROM members;
-- deny column_not_allowed: the row's own key of where a CTE is used
WITH c AS (SELECT emp.rowid AS v FROM json_each('[1]') emp) SELECT name, (SELECT MAX(v) FROM c) FROM emp;
-- deny unknown_table: a CTE that speaks of the query around it, whose name means another source where it is used
SELECT (WITH c AS (SELECT t.pin AS v) SELECT (SELECT MAX(v) FROM c) FROM members t LIMIT 1) FROM (SELECT 'x' AS pin) t;
-- deny column_not_allowed: the same without the name of the source
SELECT (WITH c AS (SELECT pin AS v) SELECT (SELECT MAX(v) FROM c) FROM members LIMIT 1) FROM (SELECT 'x' AS pin) t;
-- deny column_not_allowed: a name in quotes that the query around a CTE has
SELECT (WITH c AS (SELECT "title" AS v) SELECT v FROM c) FROM books;
-- deny column_not_allowed: a name that only looks like one of the CTE, whose letter SQLite does not fold
WITH c AS (SELECT e.user AS v FROM (SELECT 1 AS "uſer") e) SELECT e.name, (SELECT MAX(v) FROM c) FROM emp e;
-- deny unknown_table: the name of a source that only looks like one of the CTE
WITH c AS (SELECT emp.uid AS v FROM (SELECT 1 AS uid) "émp") SELECT name, (SELECT MAX(v) FROM c) FROM emp;
-- allow: what a function gives, in a CTE
WITH c AS (SELECT key AS k, j.value AS v, "type" FROM json_each('[10, 20]') AS j) SELECT title, (SELECT SUM(v) FROM c WHERE k < b.id) FROM books b;
-- allow: the columns of VALUES, in a CTE
WITH c AS (SELECT column1 AS n, q.column2 AS s FROM (VALUES (1, 'a'), (2, 'b')) AS q), d(n) AS (VALUES (3)) SELECT title FROM books WHERE id IN (SELECT n FROM c) OR id IN (SELECT n FROM d);
-- allow: subqueries that speak of one another, in a CTE
WITH c AS (SELECT b.id, b.title, (SELECT COUNT(*) FROM loans l WHERE l.book_id = b.id) AS n FROM books b WHERE genre = "crime" OR EXISTS (SELECT 1 FROM loans WHERE book_id = b.id)) SELECT title, (SELECT MAX(n) FROM c WHERE c.id <= x.id) FROM books x;
-- allow: a recursive CTE that names no columns
WITH RECURSIVE c AS (SELECT 1 AS n, 'a' AS s UNION ALL SELECT n + 1, s || 'b' FROM c WHERE n < 3 UNION ALL SELECT n + 5, s FROM c WHERE n = 1) SELECT n, (SELECT COUNT(*) FROM books WHERE id < c.n) FROM c;

-- Texts that no server stops working on.
-- allow: texts of a stated length
SELECT printf('%04d-%02d', id, pages), format('%.2f', price), printf('%,d', pages) FROM books;
-- allow: a column looked for
SELECT title FROM books WHERE instr(lower(title), lower(genre)) = 0 AND title NOT LIKE '%' || genre || '%';
-- allow: parts of a text
SELECT substr(title, 1, instr(title, ' ') - 1), replace(title, ' ', '_'), ltrim(title, '0'), group_concat(title, ', ') FROM books GROUP BY id;
-- deny too_complex: a long blob
SELECT hex(zeroblob(4900000));
-- deny too_complex: printf with a width
SELECT printf('%1000000d', 1);
-- deny too_complex: format with a width
SELECT format('%1000000d', 1);
-- deny too_complex: a precision that comes later
SELECT printf('%.*c', 1000000, 'x');
-- deny too_complex: a format from a column
SELECT printf(title, 1) FROM books;
-- deny too_complex: a long text is looked for 0
SELECT instr(title, hex(zeroblob(900)) || '1') FROM books;
-- deny too_complex: a long text is looked for 1
SELECT title LIKE '%' || hex(zeroblob(900)) FROM books;
-- deny too_complex: a long text is looked for 2
SELECT title GLOB hex(zeroblob(900)) FROM books;
-- deny too_complex: a long text is looked for 3
SELECT like(hex(zeroblob(900)), title) FROM books;
-- deny too_complex: a long text is looked for 4
SELECT glob(hex(zeroblob(900)), title) FROM books;
-- deny too_complex: a long text is looked for 5
SELECT replace(title, hex(zeroblob(900)), 'b') FROM books;
-- deny too_complex: a long text is looked for 6
SELECT replace(title, 'a', hex(zeroblob(900))) FROM books;
-- deny too_complex: a long text is looked for 7
SELECT rtrim(title, hex(zeroblob(900))) FROM books;
-- deny too_complex: a long text is looked for 8
SELECT trim(title, hex(zeroblob(900))) FROM books;
-- deny too_complex: a long text is looked for 9
SELECT group_concat(title, hex(zeroblob(900))) FROM books;
-- deny too_complex: a column of a subquery is looked for
SELECT title LIKE a FROM books, (SELECT title || title AS a FROM books);
-- deny function_not_allowed: each key of an object compared with each of another
SELECT json_patch('{"a":1}', '{"b":1}');

-- What the server takes, and gives the same for as for the statement that was sent.
-- allow: JSON behind an arrow, within a function
SELECT json_array_length(j->'l'), json_valid(j->>'$.l'), count(j->'t') FROM (SELECT '{"l":[1,2]}' AS j) AS d;
-- allow: JSON behind an arrow, in FROM
SELECT e.value FROM (SELECT '{"l":[1,2]}' AS j) AS d, json_each(j->'l') AS e;
-- allow: JSON made and changed
SELECT json_array(1, 'a', NULL), json_set('{}', '$.a', 1), json_remove('{"a":1}', '$.a'), json_insert('{}', '$.b', 1), json_replace('{"b":2}', '$.b', 1);
-- allow: a median
SELECT AVG(pages) FROM (SELECT pages FROM books ORDER BY pages LIMIT 2 - (SELECT COUNT(*) FROM books) % 2 OFFSET (SELECT (COUNT(*) - 1) / 2 FROM books)) AS middle;
-- allow: logarithms to the last digit
SELECT log10(pages), log2(pages), log(2, 8) FROM books ORDER BY id;
-- allow: types as they were given
SELECT CAST(SUM(pages) AS DECIMAL(10,2)) / 7, CAST('2024-05-06' AS DATE), CAST('2024-05-06' AS DATETIME), CAST('12:30' AS TIME), CAST('7x' AS TIMESTAMP), CAST(7 AS DATE), CAST(7.5 AS BOOLEAN), CAST(7.5 AS NUMERIC), CAST(7 AS UNSIGNED BIG INT), CAST(7.5 AS integer), CAST(7 AS VARCHAR(9)), CAST(7 AS REAL), CAST(7 AS DOUBLE PRECISION), CAST(12 AS BINARY) || '' FROM books;
-- allow: a comma between tables, beside JOIN
SELECT b.title, m.name FROM books b, members m JOIN loans l ON l.member_id = m.id AND l.book_id = b.id ORDER BY l.id;
-- deny type_not_allowed: a type that there is not
SELECT CAST(title AS wages) FROM books;
-- deny syntax: a text where a type should be
SELECT CAST(title AS 'TEXT') FROM books;
-- deny syntax: no comma within a function
SELECT substr(title AND -2) FROM books;
-- deny syntax: a word too many
SELECT (1, 2) IN (VALUES (1, 2) BY) FROM books;
-- deny column_not_allowed: a function that looks to the right
SELECT b.value FROM (SELECT 1+1) AS a, json_each(json_array(pin)) AS b JOIN members;
-- deny column_not_allowed: the same with the table before it
SELECT (SELECT b.value FROM json_each(json_array(m.pin)) AS b JOIN members AS m) FROM (SELECT 'x' AS pin) AS m;
-- deny column_not_allowed: a key by another name, of a query with a column without a name
SELECT x.rowid FROM (SELECT name, 1 + 1 FROM emp) x;

-- NOT before IN, BETWEEN and the like, beside an operator.
-- allow: on the left
SELECT id NOT IN (1, 2) = 1, id NOT BETWEEN 1 AND 2 = 0, title NOT GLOB 'T*' <> 0, 'a' NOT IN (id, pages) <> '3' FROM books ORDER BY id;
-- allow: in brackets
SELECT 1 = (id NOT IN (1, 2)), (id NOT BETWEEN 1 AND 2) < 1, SUM((title NOT IN ('x')) * pages) FROM books GROUP BY id ORDER BY id;
-- allow: as it mostly stands
SELECT id FROM books WHERE NOT id IN (7) AND title NOT LIKE 'x' AND id NOT BETWEEN 8 AND 9 AND NOT (id = 3 OR id = 4) ORDER BY id;
-- deny syntax: on the right, which belongs to what is before it
SELECT 1 = id NOT IN (1, 2) FROM books;
-- deny syntax: before a comparison, which belongs to its bound
SELECT id NOT BETWEEN 1 AND 2 < 3 FROM books;
-- deny syntax: NOT alone, which takes in what comes after it
SELECT id + NOT title || 2, ~ NOT id / 7 FROM books;
