"""What the networks' parameters are called elsewhere, one file a family.

Each file has functions named after whose names they give: `tf_slim(model_name, path)`, and where an
architecture coincides `keras(model_name)` and `torch(model_name)`, dicts from path to name.
"""
