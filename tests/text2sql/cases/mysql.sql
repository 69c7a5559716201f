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
