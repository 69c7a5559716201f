-- The first tables: from an empty database.

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
