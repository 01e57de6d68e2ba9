# SPDX-License-Identifier: Apache-2.0
"""Reads a page as a browser does, with Python's parser: prints its elements, texts and scripts as one JSON object."""

import base64
import hashlib
import json
import sys
from html.parser import HTMLParser


class Page(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.elements, self.scripts, self.policy, self.inside = [], [], "", None

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        # Of the image's marks, places and colours differ; the names of attributes do not.
        self.elements.append([tag, sorted(attributes)])
        if tag == "script":
            self.inside = attributes
            self.scripts.append({"type": attributes.get("type", ""), "text": "", "attributes": sorted(attributes)})
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes["content"]

    def handle_endtag(self, tag):
        if tag == "script":
            self.inside = None

    def handle_data(self, data):
        if self.inside is not None:
            self.scripts[-1]["text"] += data


with open(sys.argv[1], encoding="utf-8", newline="") as file:
    page = Page()
    page.feed(file.read())
    page.close()
for script in page.scripts:
    digest = hashlib.sha256(script["text"].encode()).digest()
    script["source"] = "'sha256-" + base64.b64encode(digest).decode() + "'"
    script["data"] = json.loads(script["text"]) if script["type"] == "application/json" else None
    del script["text"]
print(json.dumps({"elements": page.elements, "scripts": page.scripts, "policy": page.policy}))
