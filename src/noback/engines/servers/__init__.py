"""Inference servers as engines: the model lives in SGLang or vLLM, and only an adapter's copies travel."""
