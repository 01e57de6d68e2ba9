# SPDX-License-Identifier: Apache-2.0
# What all targets share, and the few functions with which rooms declare them.

# freshet_options is for everything; freshet_plain_options for what no sanitizer needs to look into, though it is linked with
# what one does.
add_library(freshet_plain_options INTERFACE)
add_library(freshet_options INTERFACE)
target_link_libraries(freshet_options INTERFACE freshet_plain_options)
target_compile_options(freshet_plain_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor
                       -Wno-missing-field-initializers)  # Designated initialisers leave out what keeps its default.
if(FRESHET_WERROR)
  target_compile_options(freshet_plain_options INTERFACE -Werror)
endif()
# A program names its sources from the root of the tree, wherever that lay; so a compiler's cache serves other folders, too.
target_compile_options(freshet_plain_options INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(FRESHET_UNITY)
  # What a source file keeps for itself has names that no other file of its target has.
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # g++ takes the files for headers, and loses track of what was set in units of this size.
    # Its collector of garbage costs a twentieth of the time, and saves a third of 1.5 GB.
    target_compile_options(freshet_plain_options INTERFACE -Wno-subobject-linkage -Wno-maybe-uninitialized
                           "SHELL:--param ggc-min-heapsize=1000000")
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(freshet_plain_options INTERFACE -Wthread-safety)
endif()
if(FRESHET_SANITIZE)
  target_compile_options(freshet_options INTERFACE -fsanitize=${FRESHET_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(freshet_plain_options INTERFACE -fsanitize=${FRESHET_SANITIZE})
  # Not the build type's level: code without a sanitizer has the release's options, and so the release's objects from the
  # compiler's cache.
  target_compile_options(freshet_options INTERFACE -O1 -g1 -UNDEBUG)
  if(FRESHET_SANITIZE MATCHES address)
    # A call instead of instructions at each access to memory: a quarter less to compile. core, whose loops are long, has
    # the instructions.
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      target_compile_options(freshet_options INTERFACE
        "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:FRESHET_READS_FOREIGN_BYTES>>>:SHELL:--param asan-instrumentation-with-call-threshold=0>")
    endif()
  endif()
  if(FRESHET_SANITIZE MATCHES undefined)
    # These four are tests at each access to memory, and make compiling three times as long. A null pointer ends the process
    # in any build; the address sanitizer sees an object that is too small, or of a type that was cast wrongly. core,
    # which reads foreign bytes, keeps `alignment`.
    target_compile_options(freshet_options INTERFACE -fno-sanitize=null,vptr,object-size
                           $<$<NOT:$<BOOL:$<TARGET_PROPERTY:FRESHET_READS_FOREIGN_BYTES>>>:-fno-sanitize=alignment>)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # Among a sanitizer's own instructions g++ 12 loses track of what was set.
    target_compile_options(freshet_options INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()

# A room is a static library of every source file under its folder: freshet_room(core).
function(freshet_room name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  file(GLOB_RECURSE schemas CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.fbs)
  set(generated)
  foreach(schema ${schemas})
    get_filename_component(stem ${schema} NAME_WE)
    file(RELATIVE_PATH relative ${PROJECT_SOURCE_DIR} ${schema})
    get_filename_component(folder ${relative} DIRECTORY)
    set(header ${PROJECT_BINARY_DIR}/generated/${folder}/${stem}_generated.h)
    add_custom_command(OUTPUT ${header} DEPENDS ${schema} VERBATIM
      COMMAND ${FLATC} --cpp --cpp-std c++17 --scoped-enums -o ${PROJECT_BINARY_DIR}/generated/${folder} ${schema})
    list(APPEND generated ${header})
  endforeach()
  add_library(freshet_${name} STATIC ${sources} ${generated})
  add_library(freshet::${name} ALIAS freshet_${name})
  target_link_libraries(freshet_${name} PRIVATE $<BUILD_INTERFACE:freshet_options>)
  target_include_directories(freshet_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_include_directories(freshet_${name} SYSTEM PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>)
endfunction()

# What scripts/build.sh builds: programs and benchmarks, no tests. user_programs are those without benchmarks.
add_custom_target(programs)
add_custom_target(user_programs)

# Compiles the benchmarks' sources without the optimiser, and links nothing: this shows that they still compile.
# scripts/test.sh --all builds this target. The one program that tests run (schedules) is built with its tests.
add_custom_target(benchmarks_compile)
function(freshet_compiles name)
  add_library(${name}_compiles OBJECT EXCLUDE_FROM_ALL ${ARGN})
  target_link_libraries(${name}_compiles PRIVATE $<TARGET_PROPERTY:${name},LINK_LIBRARIES>)
  target_compile_definitions(${name}_compiles PRIVATE $<TARGET_PROPERTY:${name},COMPILE_DEFINITIONS>)
  target_compile_options(${name}_compiles PRIVATE -O0)
  add_dependencies(benchmarks_compile ${name}_compiles)
endfunction()

# A program of the release: freshet_program(live_run SOURCES … LIBRARIES …). One with a
# FOLDER inside build/bin (benchmarks) is not installed.
function(freshet_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FOLDER" "SOURCES;LIBRARIES")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE freshet_options ${arg_LIBRARIES})
  add_dependencies(programs ${name})
  if(arg_FOLDER)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${arg_FOLDER})
    if(arg_FOLDER STREQUAL benchmarks)
      freshet_compiles(${name} ${arg_SOURCES})
    endif()
  else()
    add_dependencies(user_programs ${name})
    set_property(GLOBAL APPEND PROPERTY FRESHET_INSTALLED_PROGRAMS ${name})
  endif()
endfunction()
