"""ONNX files of networks: one file that ONNX Runtime and other programs run without Python."""

from penstock.onnx_export._convert import convert as convert
from penstock.onnx_export._save import Source as Source
from penstock.onnx_export._save import check as check
from penstock.onnx_export._save import save as save
