-- For MySQL and MariaDB.

-- allow: names in backticks
SELECT `title` FROM `books` WHERE `genre` = "novel";
-- allow: Chinese names in backticks
SELECT `读者` FROM `借阅记录` WHERE `天数` > 5;
-- allow: a backslash before a quote is part of the text
SELECT id FROM books WHERE title <> 'a\'; DROP TABLE books; -- ';
-- allow: a backslash at the end of a text
SELECT 'a\\' AS t, 'b' AS u;
-- allow: functions of dates
SELECT DATE_FORMAT(lent_on, '%Y-%m') AS month, COUNT(*) AS n FROM loans GROUP BY DATE_FORMAT(lent_on, '%Y-%m') ORDER BY month;
-- allow: groups added up
SELECT genre, SUM(price) AS s FROM books GROUP BY genre WITH ROLLUP;
-- allow: a hint to the optimizer is left out
SELECT /*+ MAX_EXECUTION_TIME(1000) */ STRAIGHT_JOIN title FROM books;
-- allow: the schema's own name is fine
SELECT t2s_library.books.title FROM t2s_library.books;
-- allow: limit with an offset in front
SELECT id FROM books ORDER BY id LIMIT 1, 2;

-- deny syntax: writes a file
SELECT title FROM books INTO OUTFILE '/tmp/t2s_out.txt';
-- deny structure_not_allowed: into a variable
SELECT title INTO @x FROM books;
-- deny structure_not_allowed: a variable
SELECT @x;
-- deny structure_not_allowed: a setting of the server
SELECT @@datadir;
-- deny structure_not_allowed: an assignment
SELECT @x := 1;
-- deny function_not_allowed: reads a file
SELECT LOAD_FILE('/etc/hostname');
-- deny function_not_allowed: waits
SELECT SLEEP(1);
-- deny function_not_allowed: keeps the server busy
SELECT BENCHMARK(1000000, MD5('x'));
-- deny function_not_allowed: a lock that outlives the statement
SELECT GET_LOCK('x', 1);
-- deny structure_not_allowed: a function of another schema
SELECT sys.version_major();
-- deny not_select: a procedure
CALL wipe();
-- deny not_select: a list of sessions
SHOW PROCESSLIST;
-- deny not_select: EXPLAIN ANALYZE carries it out
EXPLAIN ANALYZE SELECT * FROM books;
-- deny syntax: double quotes make a text, not a name
SELECT title FROM "books";
-- deny syntax: a join that MySQL does not have
SELECT b.id FROM books b FULL JOIN loans l ON l.book_id = b.id;
-- deny structure_not_allowed: JSON_TABLE is fine, a partition is not
SELECT id FROM books PARTITION (p0);
-- deny type_not_allowed: as the name of a character set, which it is not
SELECT CONVERT(name USING pin) FROM members;
-- deny column_not_allowed: in the condition of a join in brackets
SELECT b.id FROM (members m JOIN books b ON m.pin = b.title);
-- deny column_not_allowed: inside a function of groups
SELECT GROUP_CONCAT(name ORDER BY pin) FROM members;
-- deny column_not_allowed: inside a search
SELECT name FROM members WHERE MATCH(pin) AGAINST('x');
-- deny column_not_allowed: in a named window
SELECT ROW_NUMBER() OVER w FROM members WINDOW w AS (ORDER BY email);
-- deny column_not_allowed: in JSON_TABLE
SELECT j.x FROM members m, JSON_TABLE(m.pin, '$' COLUMNS(x INT PATH '$')) AS j;
-- allow: JSON_TABLE over what may be read
SELECT j.x FROM JSON_TABLE('[1,2]', '$[*]' COLUMNS(x INT PATH '$')) AS j;
-- allow: a text that is the name of a hidden column
SELECT 'pin' AS word, name FROM members WHERE town <> 'email';
-- deny column_not_allowed: İ is i for the server
SELECT pİn AS pİn FROM members;
-- deny column_not_allowed: the same in groups
SELECT COUNT(*), 1 AS pİn FROM members GROUP BY pİn;
-- deny column_not_allowed: the same as the name of an outer column
SELECT (SELECT pİn FROM members LIMIT 1) FROM (SELECT 1 AS pİn) x;
-- deny column_not_allowed: the key by another name
SELECT _rowid AS _rowid FROM emp;
-- deny column_not_allowed: the same in groups
SELECT 1 AS _rowid, COUNT(*) FROM emp GROUP BY _rowid;
-- allow: the outer column of that name, and no other
SELECT (SELECT _rowid FROM emp LIMIT 1) AS x FROM (SELECT 1 AS _rowid) q;
-- deny structure_not_allowed: an order behind brackets over columns that are not known
(SELECT m.name, j.* FROM members m, JSON_TABLE('[1]', '$[*]' COLUMNS(x INT PATH '$')) AS j) ORDER BY pin = 'SECRET-2' DESC LIMIT 1;
-- deny table_not_allowed: a CTE or a table, as the server likes
WITH Books AS (SELECT 1 AS id) SELECT * FROM books;
-- allow: no table at all
SELECT 1 AS one FROM DUAL WHERE 1 = 1;

-- Texts that no server stops working on.
-- allow: texts of a stated length
SELECT LPAD(id, 6, '0'), RPAD(title, 20, ' '), REPEAT('*', 10), SPACE(3) FROM books;
-- allow: replaced several times
SELECT REPLACE(REPLACE(REPLACE(title, '&', '&amp;'), '<', '&lt;'), '>', '&gt;') FROM books;
-- allow: a column looked for
SELECT title FROM books WHERE title LIKE CONCAT('%', LOWER(genre), '%') OR LOCATE(genre, title) = 0;
-- allow: a column of an outer table looked for
SELECT title FROM books b WHERE NOT EXISTS (SELECT 1 FROM members m WHERE b.title LIKE CONCAT('%', m.name, '%'));
-- allow: a year looked for
SELECT title FROM books WHERE title NOT LIKE CONCAT('%', YEAR(CURDATE()), '%');
-- allow: parts of a text
SELECT SUBSTRING_INDEX(title, ' ', -1), TRIM(LEADING 'The ' FROM title), LENGTH(title) - LENGTH(REPLACE(title, 'a', '')) FROM books;
-- allow: a path that grows in a recursion
WITH RECURSIVE t AS (SELECT 1 AS n, CAST('a' AS CHAR(1000)) AS path UNION ALL SELECT b.id, CONCAT(path, '/', title) FROM t JOIN books b ON b.id = t.n + 1) SELECT path FROM t;
-- allow: groups put together
SELECT GROUP_CONCAT(title ORDER BY id SEPARATOR '; ') FROM books;
-- allow: a pattern of a scalar subquery
SELECT title FROM books WHERE genre LIKE (SELECT CONCAT(genre, '%') FROM books WHERE id = 1);
-- deny too_complex: the length of a repeated text is a large number
SELECT REPEAT('a', 4000000);
-- deny too_complex: or is computed
SELECT REPEAT('a', 900 * 900);
-- deny too_complex: or comes from a column
SELECT REPEAT(title, pages) FROM books;
-- deny too_complex: a text filled up
SELECT LPAD('a', 1000000, 'b');
-- deny too_complex: blanks
SELECT SPACE(1000000);
-- deny too_complex: a type that fills up
SELECT CAST('a' AS BINARY(10000000));
-- deny too_complex: a weight that fills up
SELECT WEIGHT_STRING('a' AS CHAR(1000000));
-- deny too_complex: repeated again and again
SELECT REPEAT(REPEAT(REPEAT('a', 1000), 1000), 1000);
-- deny too_complex: doubled again and again
SELECT HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(HEX(title)))))))))))))))))))) FROM books;
-- deny too_complex: put together again and again
WITH a AS (SELECT CONCAT(title, title) AS t FROM books), b AS (SELECT CONCAT(t, t, t, t, t, t, t, t) AS t FROM a), c AS (SELECT CONCAT(t, t, t, t, t, t, t, t) AS t FROM b), d AS (SELECT CONCAT(t, t, t, t, t, t, t, t) AS t FROM c), e AS (SELECT CONCAT(t, t, t, t, t, t, t, t) AS t FROM d), f AS (SELECT CONCAT(t, t, t, t, t, t, t, t) AS t FROM e), g AS (SELECT CONCAT(t, t, t, t, t, t, t, t) AS t FROM f) SELECT LENGTH(t) FROM g;
-- deny too_complex: doubled in a recursion
WITH RECURSIVE r AS (SELECT 'a' AS t, 1 AS n UNION ALL SELECT CONCAT(t, t), n + 1 FROM r WHERE n < 30) SELECT LENGTH(t) FROM r;
-- deny too_complex: replaced by more in a recursion
WITH RECURSIVE r AS (SELECT 'a' AS t, 1 AS n UNION ALL SELECT REPLACE(t, 'a', 'aa'), n + 1 FROM r WHERE n < 30) SELECT LENGTH(t) FROM r;
-- deny too_complex: a long text is looked for: LOCATE 0
SELECT LOCATE(CONCAT(REPEAT('a', 900), 'b'), title) FROM books;
-- deny too_complex: a long text is looked for: INSTR 1
SELECT INSTR(title, REPEAT('a', 900)) FROM books;
-- deny too_complex: a long text is looked for: POSITION 2
SELECT POSITION(REPEAT('a', 900) IN title) FROM books;
-- deny too_complex: a long text is looked for: title 3
SELECT title LIKE REPEAT('a', 900) FROM books;
-- deny too_complex: a long text is looked for: title 4
SELECT title NOT LIKE REPEAT('a', 900) FROM books;
-- deny too_complex: a long text is looked for: title 5
SELECT title REGEXP REPEAT('a', 900) FROM books;
-- deny too_complex: a long text is looked for: title 6
SELECT title RLIKE REPEAT('a', 900) FROM books;
-- deny too_complex: a long text is looked for: REGEXP_REPLACE 7
SELECT REGEXP_REPLACE(title, REPEAT('a', 900), 'x') FROM books;
-- deny too_complex: a long text is looked for: REGEXP_SUBSTR 8
SELECT REGEXP_SUBSTR(title, REPEAT('a', 900)) FROM books;
-- deny too_complex: a long text is looked for: REGEXP_INSTR 9
SELECT REGEXP_INSTR(title, REPEAT('a', 900)) FROM books;
-- deny too_complex: a long text is looked for: SUBSTRING_INDEX 10
SELECT SUBSTRING_INDEX(title, REPEAT('a', 900), 1) FROM books;
-- deny too_complex: a long text is looked for: FIND_IN_SET 11
SELECT FIND_IN_SET(REPEAT('a', 900), title) FROM books;
-- deny too_complex: a long text is looked for: TRIM 12
SELECT TRIM(BOTH REPEAT('a', 900) FROM title) FROM books;
-- deny too_complex: a long text is looked for: REPLACE 13
SELECT REPLACE(title, REPEAT('a', 900), 'b') FROM books;
-- deny too_complex: a long text is looked for: REPLACE 14
SELECT REPLACE(title, 'a', REPEAT('a', 900)) FROM books;
-- deny too_complex: a long text is looked for: JSON_SEARCH 15
SELECT JSON_SEARCH(title, 'one', REPEAT('a', 900)) FROM books;
-- deny too_complex: a long text is looked for: GROUP_CONCAT 16
SELECT GROUP_CONCAT(title ORDER BY (title LIKE REPEAT('a', 900))) FROM books;
-- deny too_complex: a literal of more than 255 characters is looked for
SELECT title FROM books WHERE title LIKE 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa';
-- deny too_complex: a column that the statement made is looked for
SELECT LOCATE(t.a, 'x') FROM (SELECT CONCAT(title, title) AS a FROM books) t;
-- deny too_complex: the same without its table
SELECT LOCATE(a, 'x') FROM (SELECT CONCAT(title, title) AS a FROM books) t;
-- deny too_complex: the same from a CTE
WITH t AS (SELECT CONCAT(title, title) AS a FROM books) SELECT LOCATE(a, 'x') FROM t;
-- deny too_complex: the same from an outer query
SELECT (SELECT LOCATE(t.a, b.title) FROM books b LIMIT 1) FROM (SELECT CONCAT(title, title) AS a FROM books) t;
-- deny too_complex: the same from a scalar subquery
SELECT LOCATE((SELECT GROUP_CONCAT(title) FROM books), title) FROM books;
-- deny too_complex: the same behind the name of a column
SELECT REPEAT('a', 900) AS title FROM books b HAVING LOCATE(title, 'x') = 0;
-- deny too_complex: shapes out of a gathered text
WITH RECURSIVE t(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM t WHERE n < 99) SELECT 0 + ST_Equals(ST_GeomFromText(CONCAT('LINESTRING', REPLACE(REPLACE(CAST((SELECT JSON_ARRAYAGG(n) FROM t) AS CHAR), ',', ' 0,'), '[', '('))), ST_GeomFromText(CONCAT('LINESTRING', REPLACE(REPLACE(CAST((SELECT JSON_ARRAYAGG(n) FROM t) AS CHAR), ',', ' 0,'), '[', '(')))) AS r;
-- deny too_complex: a pattern in a gathered text
WITH RECURSIVE t(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM t WHERE n < 99) SELECT LENGTH(REGEXP_REPLACE((SELECT GROUP_CONCAT(REPEAT('a', 990) SEPARATOR '') FROM t), 'a', 'b'));
-- deny too_complex: the same behind the name of a column
SELECT g REGEXP 'a' FROM (SELECT GROUP_CONCAT(title SEPARATOR '') AS g FROM books) AS q;
-- deny too_complex: what a type filled up is looked for
SELECT LOCATE(CONCAT(CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), CAST('' AS BINARY(1000)), 'b'), REPEAT(REPEAT(CAST('' AS BINARY(1000)), 1000), 1));
-- deny too_complex: short parts that are long together
SELECT LOCATE(CONCAT(CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), CAST('' AS BINARY(255)), 'b'), title) FROM books;
-- deny too_complex: what a type filled up is repeated
SELECT LENGTH(REPEAT(REPEAT(CAST('' AS BINARY(1000)), 1000), 1));
-- deny too_complex: characters written wider again and again
SELECT LENGTH(CONVERT(CAST(CONVERT(CONVERT(CAST(CONVERT(CONVERT(CAST(CONVERT(CONVERT(CAST(CONVERT(CONVERT(CAST(CONVERT(CONVERT(CAST(CONVERT(CONVERT(CAST(CONVERT(CONVERT(CAST(CONVERT(CONVERT(CAST(CONVERT(CONVERT(CAST(CONVERT(CONVERT(CAST(CONVERT(title USING utf32) AS BINARY) USING latin1) USING utf32) AS BINARY) USING latin1) USING utf32) AS BINARY) USING latin1) USING utf32) AS BINARY) USING latin1) USING utf32) AS BINARY) USING latin1) USING utf32) AS BINARY) USING latin1) USING utf32) AS BINARY) USING latin1) USING utf32) AS BINARY) USING latin1) USING utf32) AS BINARY) USING latin1) USING utf32) AS BINARY) USING latin1) USING utf32) AS BINARY) USING latin1)) FROM books;
-- allow: a shape, and a path with its depth
WITH RECURSIVE t(n, root, path) AS (SELECT 1, CAST('a' AS CHAR(9)), CAST('a' AS CHAR(99)) UNION ALL SELECT n + 1, root, CONCAT(path, '/', root, n) FROM t WHERE n < 4) SELECT path, ST_X(ST_GeomFromText('POINT(1 2)')) FROM t WHERE path LIKE 'a/%';
-- allow: a pattern in the column of a CTE
WITH c AS (SELECT LOWER(title) AS name FROM books) SELECT name FROM c WHERE name REGEXP 'a';
-- allow: days put together in a recursion
WITH RECURSIVE d AS (SELECT CAST('2024-01-01' AS DATE) AS day, CAST('a' AS CHAR(90)) AS p UNION ALL SELECT DATE_ADD(day, INTERVAL 1 DAY), CONCAT(p, day) FROM d WHERE day < '2024-01-04') SELECT p FROM d;
-- deny too_complex: a pattern in a gathered text that has the name of a column
SELECT g, GROUP_CONCAT(n) AS n FROM (SELECT genre AS g, LOWER(title) AS n FROM books) AS q GROUP BY g HAVING n REGEXP 'a';
-- deny too_complex: a pattern in a text that grew in a recursion
WITH RECURSIVE t AS (SELECT CAST('a' AS CHAR(90)) AS n UNION ALL SELECT CONCAT(n, 'x') FROM t), u AS (SELECT n AS m FROM t) SELECT m REGEXP 'x' FROM u;
-- allow: a shape of columns
SELECT ST_X(ST_GeomFromText(CONCAT('POINT(', pages, ' ', price, ')'))) FROM books ORDER BY id;

-- What the server takes, and gives the same for as for the statement that was sent.
-- allow: a pattern, in MariaDB too
SELECT title FROM books WHERE title REGEXP '^The' OR title NOT RLIKE 'a' ORDER BY id;
-- allow: a pattern beside other operators
SELECT title REGEXP 'a' + 0, 1 = (title REGEXP 'a'), (title RLIKE 'T') IS NULL, IF(title REGEXP '^T', 1, 2) FROM books ORDER BY id;
-- allow: a pattern with a flag, in MariaDB too
SELECT title FROM books WHERE REGEXP_LIKE(title, '^THE', 'i') OR REGEXP_LIKE(title, 'A', 'c');
-- allow: the order of pinyin
SELECT name, CONVERT(name USING utf8mb4), CAST(name AS CHAR(1) CHARACTER SET gbk) FROM members ORDER BY CONVERT(name USING gbk);
-- allow: INTERVAL as a function, and as a time
SELECT INTERVAL(pages, 100, 200), lent_on + INTERVAL (1 + 1) DAY, lent_on - INTERVAL 1 MONTH FROM loans JOIN books ON books.id = book_id ORDER BY loans.id;
-- allow: logarithms to the last digit
SELECT LOG10(pages), LOG2(pages), LOG(2, 8), LOG(10), LN(2) FROM books ORDER BY id;
-- allow: times of other zones, days, formats
SELECT CONVERT_TZ(lent_on, '+00:00', '+08:00'), TO_DAYS(lent_on), DATE_FORMAT(lent_on, GET_FORMAT(DATE, 'EUR')), UTC_DATE() IS NULL FROM loans ORDER BY id;
-- allow: JSON made and changed
SELECT JSON_ARRAY(1, 'a', NULL), JSON_SET('{"a":1}', '$.a', 2), JSON_REMOVE('{"a":1}', '$.a'), JSON_INSERT('{}', '$.b', 2), JSON_REPLACE('{"b":1}', '$.b', 2);
-- allow: JSON read
SELECT JSON_LENGTH(JSON_EXTRACT('{"a":[1,2]}', '$.a')), JSON_UNQUOTE(JSON_EXTRACT('{"a b":"x"}', '$."a b"'));
-- deny syntax: no comma within a function
SELECT DATE_SUB(lent_on INTERVAL 7 DAY) FROM loans;
-- deny syntax: a path that is none
SELECT JSON_EXTRACT(note, '$[(') FROM loans;
-- deny syntax: a path behind an arrow that is none
SELECT note->'$[(' FROM loans;
-- deny column_not_allowed: a function that looks to the right
SELECT b.x FROM (SELECT 1+1) AS a RIGHT JOIN JSON_TABLE(JSON_ARRAY(pin), '$[*]' COLUMNS(x VARCHAR(20) PATH '$')) AS b ON TRUE RIGHT JOIN members ON TRUE;
-- deny column_not_allowed: the same with the table before it
SELECT (SELECT b.x FROM JSON_TABLE(JSON_ARRAY(m.pin), '$[*]' COLUMNS(x VARCHAR(20) PATH '$')) AS b RIGHT JOIN members AS m ON TRUE LIMIT 1) FROM (SELECT 'x' AS pin) AS m;
-- deny column_not_allowed: LATERAL that looks to the right
SELECT x.v FROM (SELECT 1+1) AS a RIGHT JOIN LATERAL (SELECT pin AS v) AS x ON TRUE RIGHT JOIN members ON TRUE;
-- deny column_not_allowed: the name of a table that some servers take for a nearer one
SELECT (SELECT MAX(it.email) FROM members AS `İt`) AS r FROM (SELECT 1 AS email) it;
-- deny column_not_allowed: the same two levels further in
SELECT (SELECT (SELECT it.uid FROM books LIMIT 1) FROM emp AS `İt` LIMIT 1) FROM (SELECT 1 AS uid) it;
-- deny column_not_allowed: the key by another name, with İ for i
SELECT COUNT(*), 1 AS _rowİd FROM emp GROUP BY _rowİd;
-- deny column_not_allowed: the same beside columns that are not known
SELECT _rowİd FROM emp, JSON_TABLE('[1]', '$[*]' COLUMNS(x INT PATH '$')) AS j;

-- JSON paths that look at every depth.
-- allow: a path that looks at every depth
SELECT JSON_EXTRACT('{"a":{"b":1},"c":{"b":2}}', '$**.b'), JSON_UNQUOTE(JSON_EXTRACT('{"a":1}', '$.a')) FROM books;
-- allow: a path with a number
WITH RECURSIVE t(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM t WHERE n < 2) SELECT JSON_EXTRACT('[1,2,3]', CONCAT('$[', CAST(n AS UNSIGNED), ']')) FROM t;
-- allow: a path with a column of a table
SELECT JSON_EXTRACT('{"crime":1,"garden":2,"novel":3}', CONCAT('$.', genre)) FROM books;
-- deny too_complex: every depth below every depth
SELECT JSON_LENGTH(JSON_EXTRACT('[[1]]', '$**[*]**[*]'));
-- deny too_complex: the same behind an arrow
SELECT note->'$**.a**.b' FROM loans;
-- deny too_complex: the same behind the other arrow
SELECT note->>'$**.a**.b' FROM loans;
-- deny too_complex: the same in the second path
SELECT JSON_EXTRACT('[[1]]', '$[0]', '$**[*]**[*]');
-- deny too_complex: of what another one gave
SELECT JSON_EXTRACT(JSON_EXTRACT('[[1]]', '$**[*]'), '$**[*]');
-- deny too_complex: of what another one gave, in a recursion
WITH RECURSIVE t AS (SELECT '[[1]]' AS j UNION ALL SELECT JSON_EXTRACT(j, '$**[*]') FROM t) SELECT j FROM t;
-- deny too_complex: in JSON_CONTAINS_PATH
SELECT JSON_CONTAINS_PATH('[[1]]', 'one', '$**[*]**[*]');
-- deny too_complex: in JSON_CONTAINS
SELECT JSON_CONTAINS('[[1]]', '1', '$**[*]**[*]');
-- deny too_complex: in JSON_SEARCH
SELECT JSON_SEARCH('[["a"]]', 'one', 'a', NULL, '$**[*]**[*]');
-- deny too_complex: in JSON_VALUE
SELECT JSON_VALUE('[[1]]', '$**[*]**[*]');
-- deny too_complex: in JSON_KEYS
SELECT JSON_KEYS('[[1]]', '$**[*]**[*]');
-- deny too_complex: in JSON_TABLE
SELECT COUNT(*) FROM JSON_TABLE('[[1]]', '$**[*]**[*]' COLUMNS(x INT PATH '$')) AS j;
-- deny too_complex: in a column of JSON_TABLE
SELECT COUNT(*) FROM JSON_TABLE('[[1]]', '$**[*]' COLUMNS(x INT PATH '$**[*]')) AS j;
-- deny too_complex: put together
SELECT JSON_EXTRACT('[[1]]', CONCAT('$*', '*[*]*', '*[*]'));
-- deny too_complex: repeated
SELECT JSON_EXTRACT('[[1]]', CONCAT('$', REPEAT('**[*]', 4)));
-- deny too_complex: from a query
SELECT JSON_EXTRACT('[[1]]', p) FROM (SELECT '$**[*]' AS p) AS q;

-- NOT before IN, BETWEEN and the like, beside an operator.
-- allow: on either side
SELECT id NOT IN (1, 2) = 1, 1 = id NOT IN (1, 2), 0 <> id NOT BETWEEN 1 AND 2, 1 = title NOT REGEXP 'T', 1 = title NOT LIKE 'T%', 1 < id NOT IN (7) FROM books ORDER BY id;
-- allow: as it mostly stands
SELECT id FROM books WHERE NOT id IN (7) AND title NOT LIKE 'x' AND id NOT BETWEEN 8 AND 9 AND NOT (id = 3 OR id = 4) ORDER BY id;
-- allow: turned bits
SELECT ~ -1, - ~ 1, ~ ~ 1 FROM books;
