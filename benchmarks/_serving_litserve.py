"""A server to compare with: LitServe, whose batches wait up to 2 ms for more requests.

python -m benchmarks._serving_litserve FILE PORT
"""

from __future__ import annotations

import sys
from typing import Any

import litserve
import numpy as np

import penstock as ps


class Api(litserve.LitAPI):
    """Answer requests with a model; LitServe sends it to a process of its own."""

    file: str

    def setup(self, device: str) -> None:
        self.model = ps.InferenceModel.load(self.file)
        self.input = self.model.inputs[0]

    # Without an annotation it gets the request's JSON, which is all that LitServe reads.
    def decode_request(self, request):
        return np.array(request["inputs"][0]["data"], np.float32)

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        return np.stack(inputs)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return next(iter(self.model.infer_columns({self.input.name: x}).values()))

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        return list(output)

    def encode_response(self, output: np.ndarray) -> Any:
        return {"output": output.tolist()}


if __name__ == "__main__":
    api = Api(max_batch_size=64, batch_timeout=0.002, api_path="/v2/models/model/infer")
    api.file = sys.argv[1]
    server = litserve.LitServer(api, accelerator="cpu")
    server.run(port=int(sys.argv[2]), log_level="error", generate_client_file=False)
