# SPDX-License-Identifier: Apache-2.0
"""For Python servers: every answer says which weights gave it, and new weights stop nobody.

    subscriber = freshet.Subscriber("digits")
    app = freshet.serving.middleware(app, subscriber)       # any ASGI app: FastAPI, Starlette, Ray Serve's ingress
    async def handler(scope, …):
        weights = scope["freshet.snapshot"]                 # one whole version, for all of this request

    shadow = freshet.serving.Shadow(subscriber, 0.1, same, commit_when=(500, 0.01), drop_when=(50, 0.2))
    answer = shadow.handle(predict, request)                # predict(snapshot, request), with the served version

docs/python/fastapi.md, docs/python/ray-serve.md and docs/python/shadow.md have what to paste.
"""
from ._journal import Journal
from ._metrics import metrics
from ._middleware import middleware
from ._shadow import Counts, Shadow

__all__ = ["Counts", "Journal", "Shadow", "metrics", "middleware"]
