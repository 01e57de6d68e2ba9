// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tags whose names begin with "freshet." are Freshet's own: it writes them, and acts on what they say. Every door by
/// which tags come in checks them, so nobody can make Freshet act by a name in a file. Code that acts on such a tag
/// checks it again: a version may be older than this check, or come from a peer without it.
///
///   freshet.tied        {"further name": "first name", …}: tensors that a PyTorch module has twice
///   freshet.optimizers  "Adam" or "Adam, SGD": the classes that trained it, for resume() alone
///   freshet.schedulers  [{"kind": "StepLR", …}, …]: where schedulers of learning rates are, for resume() alone
///   freshet.parts       ["MODEL.rank1@3", …]: the shares of the other ranks of a PyTorch checkpoint
///   freshet.part_of     "MODEL": of such a share, whose it is

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/model/manifest.h"
#include "core/model/tensor.h"

namespace freshet {

inline constexpr std::string_view kOwnTagsBegin = "freshet.";

/// invalid_argument for a tag of that kind that Freshet does not write, or not in this form.
Status check_own_tags(const Tags& tags);

/// Removes what check_own_tags() would refuse.
void drop_bad_own_tags(Tags& tags);

/// Removes what a file of tensors cannot say: of these tags it may have freshet.tied only, and only about its own
/// tensors. Returns the names of the removed tags.
std::vector<std::string> drop_own_tags_of_file(Tags& tags, std::span<const TensorView> tensors);

}  // namespace freshet
