#include "launch/policy_tables.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>

#include "common/mapped_file.h"
#include "predictor/next_use_file.h"

namespace expertflow {
namespace {

constexpr size_t kTablesBytesMax = size_t{256} << 20;

}  // namespace

Result<std::vector<PublishTables>> LoadPolicyTables(const Options& options,
                                                    const ModelSource& model) {
  std::vector<PublishTables> all;
  ASSIGN_OR_RETURN(const bool in_place, ComputesInPlace(options));
  const std::string choice = options.Text("forecaster");
  if (in_place || choice == "off") return all;
  PublishTables tables;
  tables.kind = TablesKind::kForecaster;
  tables.required = choice != "auto";
  tables.name = tables.required ? choice : model.folder + "/" + kForecasterFileName;
  std::error_code error;
  if (!tables.required && !std::filesystem::exists(tables.name, error)) return all;
  const auto named = [&](const Status& status) {
    return tables.required
               ? status.WithContext(options.Origin("forecaster"))
               : status.WithContext("the model's forecaster (--forecaster off goes without)");
  };
  Result<std::string> bytes = ReadFileToString(tables.name, kTablesBytesMax);
  if (!bytes.ok()) return named(bytes.status());
  const Result<NextUseFile> file = DecodeNextUse(*bytes, tables.name);
  if (!file.ok()) return named(file.status());
  const ModelShape& shape = model.architecture->shape();
  const std::vector<int32_t> experts(shape.moe_layers.size(), shape.experts);
  if (file->model.experts != experts) {
    return named(InvalidArgument(fmt::format(
        "{}: fitted to {} layers with experts, the model has {} of {} experts; train one for it",
        tables.name, file->model.experts.size(), experts.size(), shape.experts)));
  }
  tables.bytes = std::move(*bytes);
  all.push_back(std::move(tables));
  return all;
}

}  // namespace expertflow
