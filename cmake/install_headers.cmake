# SPDX-License-Identifier: Apache-2.0
# Runs at install time: installs the public headers of FRESHET_ROOT to FRESHET_HEADERS. These are the headers that a room's
# story header reaches. tests/house/package.py fails for a header that none of its programs includes.
cmake_policy(VERSION 3.25)

set(waiting core/core.h transport/transport.h predictor/predictor.h scheduler/scheduler.h repo/repo.h
    repo/tier/tier.h bindings/runtime/runtime.h)
set(seen)
while(waiting)
  list(POP_FRONT waiting header)
  if(header IN_LIST seen OR NOT EXISTS ${FRESHET_ROOT}/${header})
    continue()
  endif()
  list(APPEND seen ${header})
  get_filename_component(folder ${header} DIRECTORY)
  file(INSTALL ${FRESHET_ROOT}/${header} DESTINATION ${FRESHET_HEADERS}/${folder})
  file(STRINGS ${FRESHET_ROOT}/${header} lines REGEX "^#include \"")
  foreach(line ${lines})
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${line}")
    list(APPEND waiting ${included})
  endforeach()
endwhile()
