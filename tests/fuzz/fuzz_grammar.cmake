expertflow_add_fuzz(grammar DEPS model_grammar)
