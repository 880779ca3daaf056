"""Compresses conversations with Headroom's library: reads lists of messages from the standard input, as JSON, and writes the compressed lists.

The pipeline is the library's default one, `headroom.compress(messages, model=...)`. Without a network it has no Kompress: that model for prose is
fetched from a hub at run time, and so is the vocabulary of its tokenizer, for which it uses an estimate. The compressors of logs, tables, JSON,
code and diffs need no model.
"""

import json
import logging
import os
import sys

os.environ.update(HEADROOM_OFFLINE="1", HF_HUB_OFFLINE="1", HEADROOM_TELEMETRY="off")
logging.disable(logging.CRITICAL)

import headroom  # noqa: E402

conversations = json.load(sys.stdin)
json.dump([headroom.compress(messages, model="gpt-4o").messages for messages in conversations], sys.stdout)
