-- Everything Turnkeeper keeps. Safe to run again: it creates what is missing and changes nothing that is there.
-- MySQL 8.0 and later, MariaDB 10.6 and later. All times are UTC, with microseconds.
--
--   mysql --default-character-set=utf8mb4 agent_demo < schema.sql      or      python3 -m dev migrate
--
-- A database that an older schema.sql made is brought here by migrations/NNNN_*.sql; `python3 -m dev migrate` does it.

CREATE TABLE IF NOT EXISTS schema_migrations (
  version    INT          NOT NULL COMMENT 'number of the file in migrations/',
  checksum   CHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'SHA-256 of the file; NULL where schema.sql made the tables',
  statements INT          NOT NULL DEFAULT 0 COMMENT 'how many statements of the file have been carried out',
  applied_at DATETIME(6)  NULL COMMENT 'when all of them were; NULL while it is under way',
  PRIMARY KEY (version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='which migrations this database has had';

CREATE TABLE IF NOT EXISTS conversations (
  id              BIGINT       NOT NULL AUTO_INCREMENT COMMENT 'never used twice: tells a conversation from one of the same name made after a delete',
  owner           VARCHAR(100) NOT NULL DEFAULT '' COMMENT 'whose it is; empty where the service runs without keys',
  conversation_id VARCHAR(100) NOT NULL COMMENT 'the name the caller chose, compared exactly',
  turns           INT          NOT NULL COMMENT 'how many turns are stored; the messages are 1 to 2 x turns',
  title           VARCHAR(200) NULL COMMENT 'shown in lists; at first the beginning of the first question',
  metadata        TEXT         NULL COMMENT 'a JSON object of the caller''s own, as text',
  created_at      DATETIME(6)  NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'UTC',
  updated_at      DATETIME(6)  NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'UTC; when the last turn was stored or the title changed',
  PRIMARY KEY (id),
  UNIQUE KEY conversations_name (conversation_id, owner),
  KEY conversations_of_owner (owner, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='one row for each conversation; saving a turn begins with this row, which is the only judge of who comes first';

CREATE TABLE IF NOT EXISTS messages (
  conversation_id VARCHAR(100) NOT NULL COMMENT 'conversations.conversation_id',
  owner           VARCHAR(100) NOT NULL DEFAULT '' COMMENT 'conversations.owner',
  id              INT          NOT NULL COMMENT 'counts 1, 2, 3 ... within the conversation; turn n is 2n-1 and 2n',
  role            VARCHAR(20)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'user or assistant, in turn; nothing else is ever a message',
  content         MEDIUMTEXT   NOT NULL COMMENT 'the text, exactly as it was sent or answered',
  run_id          CHAR(36)     CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'the run that stored the turn',
  created_at      DATETIME(6)  NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'UTC; when the turn was stored',
  -- A conversation lies together, and its tail is one short range.
  PRIMARY KEY (conversation_id, owner, id),
  CONSTRAINT messages_in_turn CHECK (role = IF(id % 2 = 1, 'user', 'assistant')),
  CONSTRAINT messages_conversation FOREIGN KEY (conversation_id, owner)
    REFERENCES conversations (conversation_id, owner) ON DELETE CASCADE ON UPDATE CASCADE
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='what was said: two rows for each stored turn, the question and the answer';

CREATE TABLE IF NOT EXISTS idempotency_keys (
  owner           VARCHAR(100) NOT NULL DEFAULT '' COMMENT 'whose key it is',
  name            VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the key, as the caller sent it',
  fingerprint     CHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'SHA-256 of what was asked: the same key with another body is refused',
  conversation_id VARCHAR(100) NOT NULL COMMENT 'the conversation it was sent to',
  run_id          CHAR(36)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the run that holds it; only that one may finish it',
  state           VARCHAR(10)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'running, done, or deleted: its conversation was',
  answer          MEDIUMTEXT   NULL COMMENT 'the body of the answer, given again byte for byte; NULL while running and after a delete',
  leased_until    DATETIME(6)  NOT NULL COMMENT 'UTC; a key still running after this is of a process that died',
  expires_at      DATETIME(6)  NOT NULL COMMENT 'UTC; forgotten after this',
  PRIMARY KEY (owner, name),
  KEY idempotency_keys_of_conversation (conversation_id, owner),
  KEY idempotency_keys_expiring (expires_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='requests that were sent with an Idempotency-Key, so that sent again they are not done again';

CREATE TABLE IF NOT EXISTS runs (
  id              BIGINT       NOT NULL AUTO_INCREMENT COMMENT 'in the order in which runs ended',
  run_id          CHAR(36)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the run, as answers and messages name it',
  owner           VARCHAR(100) NOT NULL DEFAULT '' COMMENT 'whose it is',
  conversation_id VARCHAR(100) NULL COMMENT 'NULL for a question outside any conversation',
  turn            INT          NULL COMMENT 'the turn it stored; NULL where it stored none',
  question        VARCHAR(200) NOT NULL COMMENT 'the beginning of the question',
  model           VARCHAR(200) NOT NULL COMMENT 'the model that was asked',
  mode            VARCHAR(10)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'real, demo, or unknown',
  stop_reason     VARCHAR(40)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'completed, or what ended it',
  error_code      VARCHAR(40)  CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'of a run that ended in an error',
  steps           INT          NULL COMMENT 'model rounds',
  tool_calls      INT          NULL COMMENT 'tool calls carried out, failed ones too',
  input_tokens    BIGINT       NULL COMMENT 'as the model service counted; NULL where it did not',
  output_tokens   BIGINT       NULL COMMENT 'likewise',
  total_tokens    BIGINT       NULL COMMENT 'likewise',
  duration_ms     DOUBLE       NULL COMMENT 'the whole run',
  model_ms        DOUBLE       NULL COMMENT 'of it, waiting for the model',
  tool_ms         DOUBLE       NULL COMMENT 'of it, in tools',
  tools           VARCHAR(2000) NOT NULL DEFAULT '' COMMENT 'name:succeeded:failed of each tool, comma separated, by name',
  started_at      DATETIME(6)  NOT NULL COMMENT 'UTC',
  PRIMARY KEY (id),
  UNIQUE KEY runs_run_id (run_id),
  KEY runs_of_owner (owner, id),
  KEY runs_of_conversation (conversation_id, owner, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='one row for each stored run, short, for lists and statistics; kept TRACE_RETENTION_DAYS';

CREATE TABLE IF NOT EXISTS run_records (
  id     BIGINT     NOT NULL COMMENT 'runs.id',
  record MEDIUMTEXT NOT NULL COMMENT 'the whole run as one JSON object; never given to the model as history',
  PRIMARY KEY (id),
  CONSTRAINT run_records_run FOREIGN KEY (id) REFERENCES runs (id) ON DELETE CASCADE
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='what happened in each stored run';

CREATE TABLE IF NOT EXISTS run_cancellations (
  run_id     CHAR(36)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the run that is to stop',
  owner      VARCHAR(100) NOT NULL DEFAULT '' COMMENT 'who asked; only a run of that owner stops',
  created_at DATETIME(6)  NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'UTC',
  PRIMARY KEY (run_id, owner)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='requests to stop a run, for whichever process has it';

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

-- The versions that these tables embody, where none are known yet.
INSERT INTO schema_migrations (version, applied_at)
SELECT version, NOW(6) FROM (SELECT 1 AS version UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4) AS embodied
WHERE NOT EXISTS (SELECT 1 FROM schema_migrations);
