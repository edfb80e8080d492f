"""The embedding engine: admission, tokenisation, batching, inference threads, deadlines."""
