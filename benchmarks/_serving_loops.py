"""Servers to compare with: starlette without batches, and LitServe.

python -m benchmarks._serving_loops starlette|litserve FILE PORT
"""

from __future__ import annotations

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
    name, size = model.inputs[0].name, model.inputs[0].shape[0]

    async def infer(request: Any) -> Response:
        body = await request.body()
        x = np.frombuffer(body[-4 * size :], np.float32)[None]
        answer = await run_in_threadpool(model.infer_columns, {name: x})
        return Response(next(iter(answer.values())).tobytes())

    app = Starlette(routes=[Route("/v2/models/model/infer", infer, methods=["POST"])])
    uvicorn.run(app, port=port, log_level="error")


def run_litserve(file: str, port: int) -> None:
    """Answer with LitServe's batches, which wait up to 2 ms for more."""
    import litserve

    class Api(litserve.LitAPI):
        def setup(self, device: str) -> None:
            self.model = ps.InferenceModel.load(file)

        async def decode_request(self, request: Any) -> np.ndarray:
            size = self.model.inputs[0].shape[0]
            return np.frombuffer((await request.body())[-4 * size :], np.float32)

        def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
            return np.stack(inputs)

        def predict(self, x: np.ndarray) -> np.ndarray:
            answer = self.model.infer_columns({self.model.inputs[0].name: x})
            return next(iter(answer.values()))

        def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
            return list(output)

        def encode_response(self, output: np.ndarray) -> Any:
            return {"output": output.tolist()}

    api = Api(max_batch_size=64, batch_timeout=0.002, api_path="/v2/models/model/infer")
    litserve.LitServer(api, accelerator="cpu").run(port=port, log_level="error")


if __name__ == "__main__":
    kind, file, port = sys.argv[1:]
    (run_litserve if kind == "litserve" else run_starlette)(file, int(port))
