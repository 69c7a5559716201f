-- What Text2SQL knows of the database that it asks: versions of its structure, and notes about it.

CREATE TABLE IF NOT EXISTS schema_snapshots (
  target      VARCHAR(255) NOT NULL COMMENT 'the database it is of: kind, host, port and name, no user and no password',
  version     INT          NOT NULL COMMENT 'counts 1, 2, 3 ... for each target; a new one only where something changed',
  fingerprint CHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'SHA-256 of the structure without the row estimates',
  structure   MEDIUMTEXT   NOT NULL COMMENT 'tables with columns, keys, comments and row estimates as one JSON object; no row of any of them',
  created_at  DATETIME(6)  NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'UTC; when a sync first saw it so',
  checked_at  DATETIME(6)  NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'UTC; when a sync last saw it so, and the row estimates are of',
  PRIMARY KEY (target, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='versions of the structure of the database that Text2SQL asks';

CREATE TABLE IF NOT EXISTS schema_notes (
  id          BIGINT       NOT NULL AUTO_INCREMENT COMMENT 'in the order in which notes were written',
  target      VARCHAR(255) NOT NULL COMMENT 'schema_snapshots.target',
  table_name  VARCHAR(128) NOT NULL COMMENT 'the table that is described',
  column_name VARCHAR(128) NOT NULL DEFAULT '' COMMENT 'the column; empty where the note is about the table',
  source      VARCHAR(10)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'human or packaged; a human note is shown before a packaged one',
  version     INT          NOT NULL COMMENT 'counts 1, 2, 3 ... for each place and source; the newest one holds',
  note        TEXT         NULL COMMENT 'the text; NULL where it was taken back',
  author      VARCHAR(100) NOT NULL DEFAULT '' COMMENT 'the owner who wrote it; empty without keys and where it was packaged',
  created_at  DATETIME(6)  NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'UTC',
  PRIMARY KEY (id),
  UNIQUE KEY schema_notes_version (target, table_name, column_name, source, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='what people and packages say of tables and columns, each change a version of its own';
