expertflow_add_fuzz(trace DEPS common trace)
