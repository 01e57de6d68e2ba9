# SPDX-License-Identifier: Apache-2.0
# FRESHET_FATBIN is the file that nvcc makes of core/gpu/kernels, or empty; FRESHET_NO_FATBIN says why. Kernels need nvcc
# alone: no CUDA library is linked, and no other file is compiled by nvcc. So the tree's language stays C++.
set(FRESHET_CUDA AUTO CACHE STRING "The kernels for NVIDIA's devices: AUTO (where nvcc 13 is found), ON (required), OFF")
set_property(CACHE FRESHET_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT FRESHET_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "FRESHET_CUDA is ${FRESHET_CUDA}: give AUTO, ON or OFF")
endif()

set(FRESHET_FATBIN "")
set(FRESHET_NO_FATBIN "")

# Whether `nvcc` is of version 13. For find_program, which else takes the first nvcc, of whatever version.
function(freshet_is_nvcc_13 is_it nvcc)
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE words ERROR_QUIET RESULT_VARIABLE failed)
  if(failed OR NOT words MATCHES "release 13\\.")
    set_property(GLOBAL APPEND PROPERTY FRESHET_OTHER_NVCC ${nvcc})
    set(${is_it} FALSE PARENT_SCOPE)
  endif()
endfunction()

# Looks for nvcc 13, in scripts/cuda_compiler.sh's folder and in PATH, and for the host compiler that it takes: ours, or
# its own choice. FRESHET_NVCC_HOST gets the option for that. `why`: why there is none that will do.
function(freshet_find_nvcc why)
  set(${why} "" PARENT_SCOPE)
  find_program(FRESHET_NVCC nvcc HINTS ${PROJECT_SOURCE_DIR}/build/cuda/nvidia/cu13/bin PATHS /usr/local/cuda/bin
               VALIDATOR freshet_is_nvcc_13 DOC "NVIDIA's compiler, version 13.0")
  set(is_13 TRUE)
  if(FRESHET_NVCC)
    freshet_is_nvcc_13(is_13 ${FRESHET_NVCC})  # A user's choice, or an old cache's.
  endif()
  if(NOT is_13)
    unset(FRESHET_NVCC CACHE)  # Another may be there next time.
  endif()
  if(NOT FRESHET_NVCC)
    get_property(others GLOBAL PROPERTY FRESHET_OTHER_NVCC)
    if(others)
      list(JOIN others ", " others)
      set(others ", and these are of another version: ${others}")
    endif()
    set(${why} "no nvcc 13 was found when Freshet was built (scripts/cuda_compiler.sh fetches it)${others}" PARENT_SCOPE)
    return()
  endif()
  # nvcc that was found may not work: no host compiler that it knows, or parts of it that are not there.
  set(folder ${PROJECT_BINARY_DIR}/generated/core/gpu)
  file(WRITE ${folder}/one_line.cu "#include <cstdint>\n__global__ void store(std::uint64_t* to) { *to = 1; }\n")
  foreach(host "-ccbin=${CMAKE_CXX_COMPILER}" "")
    execute_process(COMMAND ${FRESHET_NVCC} -fatbin -std=c++20 ${host} -arch=sm_80 ${folder}/one_line.cu
                            -o ${folder}/one_line.fatbin
                    OUTPUT_VARIABLE words ERROR_VARIABLE words RESULT_VARIABLE failed)
    if(NOT failed)
      set(FRESHET_NVCC_HOST "${host}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  # The reason becomes a string of C++ in one line.
  string(STRIP "${words}" words)
  string(REGEX REPLACE "[\r\n].*" "" words "${words}")
  string(REGEX REPLACE "[\"\\\\;]" " " words "${words}")
  set(${why} "${FRESHET_NVCC} compiled no line of CUDA when Freshet was built: ${words}" PARENT_SCOPE)
endfunction()

if(FRESHET_CUDA STREQUAL OFF)
  set(FRESHET_NO_FATBIN "Freshet was built with FRESHET_CUDA=OFF")
elseif(FRESHET_CUDA STREQUAL AUTO AND FRESHET_SANITIZE)
  set(FRESHET_NO_FATBIN "Freshet was built with a sanitizer, which sees kernels on the host alone")
else()
  freshet_find_nvcc(FRESHET_NO_FATBIN)
  if(FRESHET_CUDA STREQUAL ON AND FRESHET_NO_FATBIN)
    message(FATAL_ERROR "FRESHET_CUDA is ON, and ${FRESHET_NO_FATBIN}")
  endif()
endif()

if(FRESHET_NO_FATBIN)
  message(STATUS "Without kernels for NVIDIA's devices: ${FRESHET_NO_FATBIN}")
else()
  set(FRESHET_FATBIN ${PROJECT_BINARY_DIR}/generated/core/gpu/kernels.fatbin)
endif()

# The target carries the kernels for devices as bytes, where there are some. `source` is its file that has them.
function(freshet_carry_fatbin target source)
  if(NOT FRESHET_FATBIN)
    set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS "FRESHET_NO_FATBIN=\"${FRESHET_NO_FATBIN}\"")
    return()
  endif()
  set(folder core/gpu/kernels)
  file(GLOB texts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cu ${PROJECT_SOURCE_DIR}/${folder}/*.h)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/generated/core/gpu)
  # Code for the devices that are out, and PTX of the oldest, from which a driver makes code for any later one. Driver 580
  # takes PTX of nvcc 13.0, and of no later nvcc. A device that is older than sm_80 has no kernels.
  # CMake 3.25 drops C++20 for CUDA without a word; so it is passed by hand.
  set(devices)
  foreach(number 80 90 100 120)
    list(APPEND devices -gencode arch=compute_${number},code=sm_${number})
  endforeach()
  # Paths are relative to the tree: the file is the same wherever that lies.
  add_custom_command(OUTPUT ${FRESHET_FATBIN} DEPENDS ${texts} VERBATIM WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMAND ${FRESHET_NVCC} -fatbin -std=c++20 -O3 ${FRESHET_NVCC_HOST} -I. ${devices} -gencode arch=compute_80,code=compute_80
            -Xfatbin -compress-all --threads 2 ${folder}/kernels.cu -o ${FRESHET_FATBIN}
    COMMENT "Compiling kernels for NVIDIA's devices")
  target_sources(${target} PRIVATE ${FRESHET_FATBIN})
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS ${FRESHET_FATBIN}
                              COMPILE_DEFINITIONS "FRESHET_FATBIN=\"${FRESHET_FATBIN}\"")
endfunction()
