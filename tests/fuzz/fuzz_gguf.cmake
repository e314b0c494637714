expertflow_add_fuzz(gguf DEPS common model_checkpoint)
