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

-- The versions that these tables embody, where none are known yet.
INSERT INTO schema_migrations (version, applied_at)
SELECT version, NOW(6) FROM (SELECT 1 AS version UNION ALL SELECT 2) AS embodied
WHERE NOT EXISTS (SELECT 1 FROM schema_migrations);
