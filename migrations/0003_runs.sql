-- Stored runs, and requests to stop one.

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
