expertflow_add_fuzz(store_file DEPS common expert_store)
