"""A server to compare with: starlette, which calls the function for each request.

python -m benchmarks._serving_starlette FILE PORT
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

import penstock as ps


def run_starlette(file: str, port: int) -> None:
    """Answer each request by a call of the function in a thread."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import Response
    from starlette.routing import Route

    model = ps.InferenceModel.load(file)
    name, shape = model.inputs[0].name, model.inputs[0].shape
    size = math.prod(shape)

    async def infer(request: Any) -> Response:
        body = await request.body()
        x = np.frombuffer(body[-4 * size :], np.float32).reshape(1, *shape)
        answer = await run_in_threadpool(model.infer_columns, {name: x})
        return Response(next(iter(answer.values())).tobytes())

    app = Starlette(routes=[Route("/v2/models/model/infer", infer, methods=["POST"])])
    uvicorn.run(app, port=port, log_level="error")


if __name__ == "__main__":
    run_starlette(sys.argv[1], int(sys.argv[2]))
