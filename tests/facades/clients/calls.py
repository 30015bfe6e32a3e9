"""Calls of blockfrost-python that are read from the input: a line of JSON for each answer."""

import json
import sys

from blockfrost import ApiError, BlockFrostApi

given = json.load(sys.stdin)
api = BlockFrostApi(project_id="any", base_url=given["url"])
for name, args in given["calls"]:
    try:
        print(json.dumps({"name": name, "answer": getattr(api, name)(*args, return_type="json")}))
    except (ApiError, AttributeError, TypeError) as error:
        print(json.dumps({"name": name, "error": repr(error)}))
