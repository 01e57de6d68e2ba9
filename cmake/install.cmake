# SPDX-License-Identifier: Apache-2.0
# `cmake --install` leaves the programs, the libraries, and a package: find_package(freshet) gives freshet::freshet, which is
# all rooms that a program links. Headers keep their paths below include/freshet, so that "transport/publisher.h" means the same there as here.
# The component `development` is all of that but the programs.
include(CMakePackageConfigHelpers)

set(header_folder ${CMAKE_INSTALL_INCLUDEDIR}/freshet)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/freshet)

# Not called `freshet`: that is the program. Outside, it is freshet::freshet.
add_library(freshet_rooms INTERFACE)
add_library(freshet::freshet ALIAS freshet_rooms)
set_target_properties(freshet_rooms PROPERTIES EXPORT_NAME freshet)
target_compile_features(freshet_rooms INTERFACE cxx_std_20)
install(TARGETS freshet_rooms EXPORT freshet)
foreach(room core transport predictor scheduler repo runtime)
  target_link_libraries(freshet_rooms INTERFACE freshet::${room})
  target_include_directories(freshet_${room} INTERFACE $<INSTALL_INTERFACE:${header_folder}>)
  set_target_properties(freshet_${room} PROPERTIES EXPORT_NAME ${room})
  install(TARGETS freshet_${room} EXPORT freshet ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
endforeach()

install(CODE "set(FRESHET_ROOT \"${PROJECT_SOURCE_DIR}\")
              set(FRESHET_HEADERS \"\${CMAKE_INSTALL_PREFIX}/${header_folder}\")" COMPONENT development)
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/install_headers.cmake COMPONENT development)

# What this build found, its users need too.
set(FRESHET_OPTIONAL_MODULES)
if(hiredis_FOUND)
  list(APPEND FRESHET_OPTIONAL_MODULES hiredis=hiredis)
endif()
if(FRESHET_HAS_S3)
  list(APPEND FRESHET_OPTIONAL_MODULES expat=expat)
endif()
list(JOIN FRESHET_OPTIONAL_MODULES " " FRESHET_OPTIONAL_MODULES)

install(EXPORT freshet NAMESPACE freshet:: FILE freshet-targets.cmake DESTINATION ${package_folder}
        COMPONENT development)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/freshet-config.cmake.in ${PROJECT_BINARY_DIR}/freshet-config.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/freshet-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/freshet-config.cmake ${PROJECT_BINARY_DIR}/freshet-config-version.cmake
        DESTINATION ${package_folder} COMPONENT development)

get_property(programs GLOBAL PROPERTY FRESHET_INSTALLED_PROGRAMS)
if(programs)
  install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endif()
