-- Judged in every dialect. A case begins with `-- allow` or `-- deny code`, then a colon and why.

-- allow: a column whose name begins with a verb
SELECT id, returned_on FROM loans WHERE note = 'insert coin';
-- allow: a verb in a text
SELECT title FROM books WHERE title LIKE 'Update%' OR title = 'DROP TABLE books; --';
-- allow: a CTE over an aggregate, joined
WITH busy AS (SELECT member_id, COUNT(*) AS n FROM loans GROUP BY member_id) SELECT m.name, b.n FROM members m JOIN busy b ON b.member_id = m.id ORDER BY b.n DESC, m.name;
-- allow: a recursive CTE
WITH RECURSIVE days(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM days WHERE n < 5) SELECT n FROM days;
-- allow: a CTE that takes the name of the table it reads
WITH books AS (SELECT id, title FROM books WHERE pages > 200) SELECT title FROM books ORDER BY id;
-- allow: a correlated subquery
SELECT b.title, (SELECT COUNT(*) FROM loans l WHERE l.book_id = b.id) AS times FROM books b ORDER BY b.id;
-- allow: EXISTS
SELECT name FROM members m WHERE EXISTS (SELECT 1 FROM loans l WHERE l.member_id = m.id AND l.returned_on IS NULL) ORDER BY m.id;
-- allow: a set operation with an order of its own
SELECT title AS t FROM books UNION SELECT name FROM members ORDER BY t LIMIT 3;
-- allow: a star that hides nothing
SELECT * FROM books ORDER BY id;
-- allow: a star over a view of the policy
SELECT * FROM open_loans ORDER BY id;
-- allow: a star is written out to the columns that may be read
SELECT * FROM members ORDER BY id;
-- allow: the star of one table of several
SELECT m.*, l.lent_on FROM members m JOIN loans l ON l.member_id = m.id ORDER BY l.id;
-- allow: a star over a subquery
SELECT * FROM (SELECT id, name FROM members) AS people ORDER BY id;
-- allow: a window
SELECT title, RANK() OVER (PARTITION BY genre ORDER BY price DESC) AS place FROM books ORDER BY id;
-- allow: a case, a cast, a function with a verb for a name
SELECT CASE WHEN pages > 200 THEN 'long' ELSE 'short' END AS size, CAST(price AS CHAR(10)) AS p, REPLACE(title, 'The ', '') AS t FROM books ORDER BY id;
-- allow: a comment, and a semicolon at the end
/* report of the week */ SELECT COUNT(*) FROM loans -- all of them
;
-- allow: a percent sign
SELECT id % 2 AS odd, COUNT(*) AS n FROM books WHERE title LIKE '%a%' GROUP BY id % 2 ORDER BY odd;
-- allow: Chinese names without quotes
SELECT 读者, 天数 AS 总天数 FROM 借阅记录 ORDER BY 总天数 DESC;
-- allow: letters of any case
sElEcT TITLE fRoM books oRdEr bY ID;
-- allow: USING a column that may be read
SELECT b.title FROM books b JOIN loans l USING (id) ORDER BY b.id;
-- allow: nothing but values
SELECT 1 AS one, 'x' AS letter;

-- deny several_statements: a second statement rides along
SELECT id FROM books; DELETE FROM books;
-- deny several_statements: two reads
SELECT 1; SELECT 2;
-- deny not_select: a write behind a comment
/* weekly */ UPDATE books SET price = 0;
-- deny not_select: DDL
CREATE TABLE copy AS SELECT * FROM books;
-- deny not_select: DROP
DROP TABLE loans;
-- deny not_select: a setting
SET x = 1;
-- deny executable_comment: MySQL carries these out
SELECT 1 /*!50000 UNION SELECT wage FROM wages */;
-- deny executable_comment: and MariaDB these
SELECT title FROM books /*M! UNION SELECT name FROM wages */;
-- deny empty: only a comment
-- nothing here
;
-- deny syntax: prose
Here you are: SELECT title FROM books;
-- deny structure_not_allowed: a lock
SELECT id FROM books FOR UPDATE;
-- deny table_not_allowed: a table of nobody's business
SELECT name FROM wages;
-- deny table_not_allowed: in a subquery
SELECT title FROM books WHERE (SELECT MAX(wage) FROM wages) > 1;
-- deny table_not_allowed: in HAVING
SELECT COUNT(*) FROM books HAVING (SELECT COUNT(*) FROM wages) > 0;
-- deny table_not_allowed: behind an alias with a good name
SELECT * FROM (SELECT * FROM wages) AS books;
-- deny table_not_allowed: within a CTE with a good name
WITH books AS (SELECT * FROM wages) SELECT * FROM books;
-- deny table_not_allowed: a CTE's name does not reach into the query of an earlier one
WITH a AS (SELECT * FROM wages), wages AS (SELECT 1 AS id) SELECT * FROM a;
-- deny table_not_allowed: a view that the policy does not name
SELECT * FROM all_wages;
-- deny table_not_allowed: in one half of a union
SELECT title FROM books UNION SELECT name FROM wages;
-- deny schema_not_allowed: another schema
SELECT * FROM elsewhere.books;
-- deny catalogue_not_allowed: the catalog
SELECT table_name FROM information_schema.tables;
-- deny column_not_allowed: a hidden column
SELECT pin FROM members;
-- deny column_not_allowed: by its alias
SELECT m.email FROM members AS m;
-- deny column_not_allowed: as a condition
SELECT name FROM members WHERE pin LIKE 'SECRET%';
-- deny column_not_allowed: as an order
SELECT name FROM members ORDER BY email;
-- deny column_not_allowed: as a group
SELECT COUNT(*) FROM members GROUP BY pin;
-- deny column_not_allowed: inside a function
SELECT CONCAT(name, pin) FROM members;
-- deny column_not_allowed: by USING
SELECT a.name FROM members a JOIN members b USING (pin);
-- deny join_not_allowed: by NATURAL JOIN
SELECT a.name FROM members a NATURAL JOIN members b;
-- deny column_not_allowed: from within a subquery
SELECT (SELECT pin FROM books LIMIT 1) AS x FROM members;
-- deny column_not_allowed: from within a subquery that gives it an alias of its own name
SELECT (SELECT pin AS pin FROM books LIMIT 1) AS x FROM members;
-- deny column_not_allowed: an ON that does not see the later table, and takes the outer one
SELECT (SELECT MAX(b.id) FROM books b JOIN loans l ON m.pin = 'x' JOIN (SELECT 1 AS pin) m ON 1 = 1) AS x FROM members m;
-- deny structure_not_allowed: columns renamed in FROM
SELECT t.e FROM members AS t(a, b, c, d, e);
-- deny column_not_allowed: a column that there is not
SELECT titel FROM books;
-- deny unknown_table: an alias that there is not
SELECT x.title FROM books b;
-- deny function_not_allowed: a function that nobody listed
SELECT wage_of(1) FROM books;
-- allow: the same table inside and outside
SELECT title FROM books b WHERE price >= (SELECT MAX(x.price) FROM books x WHERE x.genre = b.genre);
-- allow: a name that the list gives, in groups, their conditions and the order
SELECT genre AS kind, COUNT(*) AS n FROM books GROUP BY kind HAVING COUNT(*) > 0 ORDER BY n DESC, kind;
-- allow: a column of a query in FROM that it does not name, by its table
SELECT q.title, q.twice FROM (SELECT title, price * 2 AS twice, pages + 1 FROM books) q;
-- allow: a name of the inner query that a table outside hides
SELECT name FROM members WHERE id IN (SELECT x.n FROM (SELECT 1 AS n, 'a' AS pin) x WHERE x.pin = 'a');
-- allow: one column of two, and stars beside it
SELECT b.*, x.* FROM books b JOIN (SELECT 1 AS id, 2 AS twice) x USING (id);
-- deny column_not_allowed: a name that the list gives, in a condition
SELECT name, 1 AS pin FROM members WHERE pin = 'SECRET-1';
-- deny column_not_allowed: a text that is taken for the name of a column
SELECT (SELECT pin FROM members LIMIT 1) FROM (SELECT 'pin') t;
-- deny structure_not_allowed: an order behind brackets, which is that of the inside
(SELECT name, CAST('pin' AS CHAR(9)) FROM members) ORDER BY pin = 'SECRET-2' DESC LIMIT 1;
-- deny structure_not_allowed: the same without a name to pretend
(SELECT name FROM members) ORDER BY pin;
-- deny column_not_allowed: one of two tables of the same name lacks it
SELECT (SELECT m.title FROM books m WHERE m.pin = 'x') FROM members m;
-- deny ambiguous_column: of two tables
SELECT id FROM books b JOIN loans l ON l.book_id = b.id;
-- deny column_not_allowed: a column of one table only as that of both
SELECT 1 FROM books JOIN loans USING (title);
-- deny syntax: what is read and cannot be written down as SQL
SELECT name LATERAL FROM members;
-- deny column_not_allowed: a name that nobody has, beside a query with a column without a name
SELECT nobody FROM books, (SELECT 1 + 1) AS o;
-- allow: three tables, two of them joined by USING
SELECT * FROM open_loans o JOIN loans l USING (id) JOIN members m ON m.id = l.member_id;
-- deny star_not_allowed: a star over USING whose values may come from the right
SELECT * FROM emp e RIGHT JOIN members m USING (name);
