# Compiler settings that hold for every target. Instruction sets beyond the x86-64 baseline are
# never set here: kernels choose theirs per source file (device/cpu).
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# What gains from more than -O2 asks for it per source file (the kernels do).
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
# Lines and functions, which is what a backtrace shows; variables would cost a fifth of the build.
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

# No contraction: a*b+c is fused only where the code says so, so that every instruction set gives
# the same bits.
add_compile_options(-Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off)
if(EXPERTFLOW_WERROR)
  add_compile_options(-Werror)
endif()
if(EXPERTFLOW_SANITIZE)
  add_compile_options(-fsanitize=${EXPERTFLOW_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${EXPERTFLOW_SANITIZE})
endif()

find_program(EXPERTFLOW_CCACHE ccache)
if(EXPERTFLOW_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${EXPERTFLOW_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${EXPERTFLOW_CCACHE})
endif()

find_package(Threads REQUIRED)
