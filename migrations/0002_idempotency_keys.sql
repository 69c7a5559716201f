-- Requests that may be sent again without being done again.

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
