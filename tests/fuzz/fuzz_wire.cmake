expertflow_add_fuzz(wire DEPS transport)
