expertflow_add_fuzz(config DEPS common model_checkpoint)
