-- The library that the cases ask. `-- mysql`, `-- postgres` and `-- sqlite` above a statement: for that server only.
CREATE TABLE members (id INT PRIMARY KEY, name VARCHAR(40), town VARCHAR(40), email VARCHAR(60), pin VARCHAR(20), joined_at TIMESTAMP NULL);
INSERT INTO members VALUES (1, 'Ada', 'Turku', 'SECRET-ada', 'SECRET-1', '2024-02-03 04:05:06'), (2, '李雷', '杭州', 'SECRET-li', 'SECRET-2', NULL);
CREATE TABLE books (id INT PRIMARY KEY, title VARCHAR(80), genre VARCHAR(20), price DECIMAL(10,2), pages INT);
INSERT INTO books VALUES (1, 'The Dropped Table', 'crime', 12.50, 300), (2, 'Update Your Garden', 'garden', 20.00, 120), (3, '红楼梦', 'novel', 35.75, 1200);
CREATE TABLE loans (id INT PRIMARY KEY, member_id INT, book_id INT, lent_on DATE, returned_on DATE NULL, note VARCHAR(80));
INSERT INTO loans VALUES (1, 1, 1, '2025-01-10', '2025-01-20', 'insert coin'), (2, 1, 3, '2025-02-01', NULL, 'select * from wages'), (3, 2, 2, '2025-02-11', NULL, NULL);
CREATE TABLE "借阅记录" ("编号" INT PRIMARY KEY, "读者" VARCHAR(40), "天数" INT);
INSERT INTO "借阅记录" VALUES (1, '李雷', 14), (2, '韩梅', 3);
CREATE TABLE wages (id INT PRIMARY KEY, name VARCHAR(40), wage INT);
INSERT INTO wages VALUES (1, 'SECRET-clerk', 7777);
CREATE VIEW open_loans AS SELECT id, book_id, lent_on FROM loans WHERE returned_on IS NULL;
CREATE VIEW all_wages AS SELECT * FROM wages;
CREATE TABLE emp (uid INTEGER PRIMARY KEY, name VARCHAR(40));
INSERT INTO emp VALUES (7777, 'Grace'), (77770, '韩梅');
