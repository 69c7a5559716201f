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
