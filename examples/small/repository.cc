// SPDX-License-Identifier: Apache-2.0
/// Stores two versions of a model in a folder, says who came from whom, and reads the first one back.
///
/// usage: repository FOLDER   (or the address of a provider, tcp://HOST:PORT; or memory: for one that ends with the
/// program)

#include <iostream>
#include <optional>
#include <span>
#include <vector>

#include "bindings/runtime/runtime.h"
#include "repo/repo.h"

namespace {

freshet::Result<freshet::VersionName> store(freshet::Repository& repository, const std::vector<float>& body,
                                            const std::vector<float>& head,
                                            std::optional<freshet::VersionName> ancestor) {
  const freshet::TensorView tensors[] = {{{.name = "body.weights", .dtype = freshet::DType::f32, .shape = {1024}},
                                          freshet::bytes_of(body.data(), body.size())},
                                         {{.name = "head.weights", .dtype = freshet::DType::f32, .shape = {16}},
                                          freshet::bytes_of(head.data(), head.size())}};
  freshet::StageRequest request{.model = "net", .tensors = tensors, .ancestor = ancestor};
  FRESHET_ASSIGN(const freshet::StagedPut staged, freshet::stage_put(repository, request));
  return repository.put(staged.manifest, staged.bytes_of(), staged.options);
}

freshet::Status run(const std::string& place) {
  FRESHET_ASSIGN(const auto repository, freshet::open_repository(place, {.access = freshet::RepositoryAccess::create}));
  const std::vector<float> body(1024, 1.0f);
  std::vector<float> head(16, 2.0f);
  FRESHET_ASSIGN(const freshet::VersionName first, store(*repository, body, head, std::nullopt));
  head.assign(16, 3.0f);  // Only the head changed, so only the head is stored again.
  FRESHET_ASSIGN(const freshet::VersionName second, store(*repository, body, head, first));

  FRESHET_ASSIGN(const auto line, repository->lineage(second));
  for (const freshet::LineageRow& row : line) {
    std::cout << to_string(row.version) << ": " << row.own_bytes << " bytes of its own, " << row.inherited_bytes
              << " inherited\n";
  }
  FRESHET_ASSIGN(const freshet::VersionRecord record, repository->get(first));
  const auto tensor = record.manifest.architecture->tensor_named("head.weights");
  const freshet::Repository::TensorRead read{*tensor, std::as_writable_bytes(std::span(head))};
  FRESHET_TRY(repository->read(record, {&read, 1}));  // Checked against its digest.
  std::cout << "the first version's head begins with " << head[0] << "\n";
  return {};
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::cerr << "usage: repository FOLDER\n", 2;
  const freshet::Status done = run(words[1]);
  if (!done) return std::cerr << done.error().message() << "\n", 1;
}
