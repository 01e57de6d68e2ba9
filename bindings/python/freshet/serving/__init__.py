# SPDX-License-Identifier: Apache-2.0
"""For Python servers: every answer says which weights gave it, and new weights stop nobody.

    subscriber = freshet.Subscriber("digits")
    app = freshet.serving.middleware(app, subscriber)       # any ASGI app: FastAPI, Starlette, Ray Serve's ingress
    async def handler(scope, …):
        weights = scope["freshet.snapshot"]                 # one whole version, for all of this request

docs/python/fastapi.md and docs/python/ray-serve.md have what to paste.
"""
from ._journal import Journal
from ._metrics import metrics
from ._middleware import middleware

__all__ = ["Journal", "metrics", "middleware"]
