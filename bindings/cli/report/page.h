// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The page of `freshet report`: a template (page.html) that the program carries, with the facts of one model in it.
/// The page needs nothing from elsewhere, and its Content-Security-Policy forbids that anything is fetched: the only
/// script that runs is the template's own, by its digest.
///
/// Names come from others. They stand in the page as JSON without '<', '>' and '&', which the script turns into text
/// nodes, and in the lineage's image, escaped. So no name becomes an element, an attribute or a script.

#include <string>

#include "bindings/cli/frame/output.h"

namespace freshet::cli {

/// `lineage` is an SVG image of lineage_svg(). `data` is what page.html's script reads (report_data.h).
std::string report_page(const std::string& title, const std::string& lineage, const Json& data);

}  // namespace freshet::cli
