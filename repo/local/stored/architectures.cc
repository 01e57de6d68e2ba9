// SPDX-License-Identifier: Apache-2.0
#include "repo/local/stored/architectures.h"

#include "core/model/proved_forms.h"
#include "repo/records/records.h"

namespace freshet {

Result<std::shared_ptr<const Architecture>> StoredArchitectures::get(const Digest& digest) const {
  if (auto known = recent_.find(digest)) return known;
  const Result<std::string> stored = backend_.get(architecture_key(digest));
  if (!stored && stored.error().code() == Code::not_found) return fail(Code::corrupt, "its architecture is missing");
  if (!stored) return fail(stored.error());
  FRESHET_ASSIGN(std::shared_ptr<const Architecture> architecture,
                 decode_architecture(bytes_of(stored->data(), stored->size())));
  if (architecture->digest() != digest)
    return fail(Code::corrupt, "its architecture is damaged: the stored one has another digest");
  recent_.add(digest, architecture);
  return architecture;
}

bool StoredArchitectures::is_damaged(const Digest& digest) const {
  const Result<std::string> stored = backend_.get(architecture_key(digest));
  if (stored) return digest_of(bytes_of(stored->data(), stored->size())) != digest;
  return stored.error().code() == Code::corrupt || stored.error().code() == Code::not_found;
}

}  // namespace freshet
