"""A trained model as files that need none of this project: ONNX, TorchScript, torch.export.

`description` and `session` need neither torch nor onnx, so that prediction starts quickly.
"""
