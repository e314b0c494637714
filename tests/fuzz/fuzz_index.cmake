expertflow_add_fuzz(index DEPS common model_checkpoint)
