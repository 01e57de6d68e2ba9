# SPDX-License-Identifier: Apache-2.0
# A quicker compiler and linker, where they are there. What the caller named himself stays.
find_program(CCACHE ccache)
if(CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

find_program(MOLD mold)
if(MOLD AND NOT CMAKE_EXE_LINKER_FLAGS MATCHES -fuse-ld)
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold FRESHET_LINKS_WITH_MOLD)
  if(FRESHET_LINKS_WITH_MOLD)
    add_link_options(-fuse-ld=mold)
  endif()
endif()
