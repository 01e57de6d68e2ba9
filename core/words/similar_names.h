// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The names that a message lists where a given name is not there: the likely meant one first.

#include <span>
#include <string>
#include <string_view>

namespace freshet {

/// "here are: net2, other, …": up to five of `names`. First come those that differ by up to three letters (upper or
/// lower case makes no difference), then those that begin alike, then the others in their order. Empty for no names.
std::string here_are(std::string_view wanted, std::span<const std::string> names);

}  // namespace freshet
