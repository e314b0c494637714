expertflow_add_fuzz(predictor_file DEPS common predictor)
target_link_libraries(fuzz_predictor_file PRIVATE PkgConfig::xxhash)
