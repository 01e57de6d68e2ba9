# Everything comes from Debian (scripts/install_dependencies.sh lists the packages). What is optional says so when missing.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(tl-expected REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(zmq REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(rocksdb REQUIRED IMPORTED_TARGET rocksdb)
find_program(FLATC flatc REQUIRED)

pkg_check_modules(ucx IMPORTED_TARGET ucx)
pkg_check_modules(hiredis IMPORTED_TARGET hiredis)

if(FRESHET_CUDA)
  enable_language(CUDA)
endif()
