// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/nas/hdf5_file.h"

#ifdef FRESHET_HAVE_HDF5
#include <hdf5.h>
#endif

#include <vector>

namespace freshet::benchmarks {

#ifdef FRESHET_HAVE_HDF5
namespace {

/// A handle of the library's, closed with its own function.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator hid_t() const { return id_; }
  bool ok() const { return id_ >= 0; }

 private:
  const hid_t id_;
  herr_t (*const close_)(hid_t);
};

Status write_tensor(const Handle& group, const std::string& name, const TensorSpec& spec, Bytes bytes) {
  const std::vector<hsize_t> shape(spec.shape.begin(), spec.shape.end());
  const Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose);
  const Handle data(H5Dcreate2(group, name.c_str(), H5T_NATIVE_FLOAT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                    H5Dclose);
  if (!data.ok() || H5Dwrite(data, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0) {
    return fail(Code::io_error, "HDF5 cannot write " + spec.name);
  }
  return {};
}

}  // namespace

Status write_model(const std::string& path, const nas::Candidate& candidate) {
  const Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
  if (!file.ok()) return fail(Code::io_error, "HDF5 cannot make " + path);
  const std::vector<TensorView> views = candidate.views(false);
  const Architecture& architecture = *candidate.architecture();
  for (std::size_t i = 0; i < architecture.layers().size(); ++i) {
    if (architecture.layers()[i].tensors.empty()) continue;
    const std::string name = to_hex(architecture.slots()[i]);
    const Handle group(H5Gcreate2(file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
    for (const LayerTensor& tensor : architecture.layers()[i].tensors) {
      FRESHET_TRY(write_tensor(group, tensor.name, views[tensor.tensor].spec, views[tensor.tensor].data));
    }
  }
  return {};
}

Result<std::size_t> read_shared_layers(const std::string& path, nas::Candidate& candidate) {
  const Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (!file.ok()) return fail(Code::io_error, "HDF5 cannot open " + path);
  const Architecture& architecture = *candidate.architecture();
  std::size_t read = 0;
  for (std::size_t i = 0; i < architecture.layers().size(); ++i) {
    const std::string group = to_hex(architecture.slots()[i]);
    if (architecture.layers()[i].tensors.empty() || H5Lexists(file, group.c_str(), H5P_DEFAULT) <= 0) continue;
    for (const LayerTensor& tensor : architecture.layers()[i].tensors) {
      const Handle data(H5Dopen2(file, (group + "/" + tensor.name).c_str(), H5P_DEFAULT), H5Dclose);
      void* const out = candidate.tensor(tensor.tensor).data();
      if (!data.ok() || H5Dread(data, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0) {
        return fail(Code::io_error, "HDF5 cannot read from " + path);
      }
      candidate.freeze(tensor.tensor);
      ++read;
    }
  }
  return read;
}

#else

Status write_model(const std::string&, const nas::Candidate&) {
  return fail(Code::unsupported, "built without HDF5 (Debian package libhdf5-dev)");
}
Result<std::size_t> read_shared_layers(const std::string&, nas::Candidate&) {
  return fail(Code::unsupported, "built without HDF5 (Debian package libhdf5-dev)");
}

#endif

}  // namespace freshet::benchmarks
