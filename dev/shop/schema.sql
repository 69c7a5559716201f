-- The sample shop. It runs on MySQL 8.0 and MariaDB 10.6 up; the rows come from dev/shop/rows.py.
CREATE TABLE categories (
  id   INT NOT NULL PRIMARY KEY,
  name VARCHAR(40) NOT NULL COMMENT '类别, in Chinese',
  name_en VARCHAR(40) NOT NULL COMMENT 'the same in English'
) ENGINE=InnoDB COMMENT='What products are sorted by';

CREATE TABLE products (
  id          INT NOT NULL PRIMARY KEY,
  title       VARCHAR(80) NOT NULL COMMENT '商品名称',
  category_id INT NOT NULL,
  price       DECIMAL(10,2) NOT NULL COMMENT '标价, yuan, today',
  cost        DECIMAL(10,2) NOT NULL COMMENT '进价, private',
  FOREIGN KEY (category_id) REFERENCES categories (id)
) ENGINE=InnoDB COMMENT='商品';

CREATE TABLE customers (
  id        INT NOT NULL PRIMARY KEY,
  name      VARCHAR(40) NOT NULL,
  city      VARCHAR(40) NOT NULL,
  phone     VARCHAR(20) NOT NULL COMMENT '手机号, private',
  id_card   VARCHAR(18) NOT NULL COMMENT '证件号, private',
  joined_on DATE NOT NULL
) ENGINE=InnoDB COMMENT='顾客';

CREATE TABLE `门店` (
  `编号`     INT NOT NULL PRIMARY KEY,
  `名称`     VARCHAR(40) NOT NULL,
  `城市`     VARCHAR(40) NOT NULL,
  `开业日期` DATE NOT NULL
) ENGINE=InnoDB COMMENT='shops';

CREATE TABLE `店员` (
  `编号`     INT NOT NULL PRIMARY KEY,
  `姓名`     VARCHAR(40) NOT NULL,
  `门店编号` INT NOT NULL,
  `入职日期` DATE NOT NULL,
  `月薪`     DECIMAL(10,2) NOT NULL COMMENT 'wage, private',
  `手机号`   VARCHAR(20) NOT NULL COMMENT 'phone, private',
  FOREIGN KEY (`门店编号`) REFERENCES `门店` (`编号`)
) ENGINE=InnoDB COMMENT='who works in a shop';

CREATE TABLE orders (
  id          INT NOT NULL PRIMARY KEY,
  customer_id INT NOT NULL,
  store_id    INT NULL COMMENT '门店编号; NULL: ordered online',
  placed_at   DATETIME NOT NULL COMMENT '下单时间, Asia/Shanghai',
  status      VARCHAR(10) NOT NULL COMMENT 'paid, cancelled',
  FOREIGN KEY (customer_id) REFERENCES customers (id),
  FOREIGN KEY (store_id) REFERENCES `门店` (`编号`),
  KEY by_time (placed_at)
) ENGINE=InnoDB COMMENT='订单';

CREATE TABLE order_items (
  order_id   INT NOT NULL,
  product_id INT NOT NULL,
  quantity   INT NOT NULL COMMENT '件数',
  unit_price DECIMAL(10,2) NOT NULL COMMENT '成交单价, yuan',
  PRIMARY KEY (order_id, product_id),
  FOREIGN KEY (order_id) REFERENCES orders (id),
  FOREIGN KEY (product_id) REFERENCES products (id)
) ENGINE=InnoDB COMMENT='订单明细';

CREATE TABLE `退货` (
  `编号`     INT NOT NULL PRIMARY KEY,
  `订单编号` INT NOT NULL,
  `商品编号` INT NOT NULL,
  `件数`     INT NOT NULL,
  `金额`     DECIMAL(10,2) NOT NULL COMMENT 'refunded, yuan',
  `原因`     VARCHAR(40) NOT NULL,
  `退货日期` DATE NOT NULL,
  FOREIGN KEY (`订单编号`, `商品编号`) REFERENCES order_items (order_id, product_id)
) ENGINE=InnoDB COMMENT='returns';
