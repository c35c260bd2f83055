// BridgeStan's C interface over the Stan model that stanc has written above this text: the part of it that whmc calls.
// It is compiled with the headers that httpstan brings, where BridgeStan's own sources are not set up.
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <stan/io/empty_var_context.hpp>
#include <stan/io/json/json_data.hpp>
#include <stan/model/log_prob_grad.hpp>
#include <stan/model/model_base.hpp>
#include <stan/services/util/create_rng.hpp>

#define WHMC_API extern "C" __attribute__((visibility("default")))

namespace whmc {

using Rng = decltype(stan::services::util::create_rng(0, 1));
using Print = void (*)(const char *, std::size_t);

Print print = nullptr;

struct Model {
  std::unique_ptr<stan::model::model_base> stan;
  std::string name, info, unconstrained;
  std::string constrained[4];  // with transformed parameters: +1, with generated quantities: +2
  int num[4];
};

int which(bool transformed, bool generated) { return (transformed ? 1 : 0) + (generated ? 2 : 0); }

std::string joined(const std::vector<std::string> &names) {
  std::string all;
  for (const auto &name : names) all += (all.empty() ? "" : ",") + name;
  return all;
}

// Every call of Stan goes through here: what the program prints is passed on, what it throws becomes a message.
template <class Call>
int guarded(char **message, Call call) {
  // the tape of derivatives is each thread's own, and has to be there before it is used, also by solvers in transforms
  static thread_local stan::math::ChainableStack tape;
  std::ostringstream said;
  std::string trouble;
  bool failed = true;
  try {
    call(said);
    failed = false;
  } catch (const std::exception &error) {
    trouble = error.what();
  } catch (...) {
    trouble = "unknown C++ exception";
  }
  const std::string text = said.str();
  if (!text.empty() && print) print(text.data(), text.size());
  if (!text.empty() && !print) std::cout << text << std::flush;
  if (failed && message) *message = strdup(trouble.c_str());
  return failed ? 1 : 0;
}

Eigen::VectorXd vector(const double *from, Eigen::Index size) { return Eigen::Map<const Eigen::VectorXd>(from, size); }

double value_and_gradient(const stan::model::model_base &model, bool propto, bool jacobian, Eigen::VectorXd &position,
                          Eigen::VectorXd &gradient, std::ostream &said) {
  if (propto)
    return jacobian ? stan::model::log_prob_grad<true, true>(model, position, gradient, &said)
                    : stan::model::log_prob_grad<true, false>(model, position, gradient, &said);
  return jacobian ? stan::model::log_prob_grad<false, true>(model, position, gradient, &said)
                  : stan::model::log_prob_grad<false, false>(model, position, gradient, &said);
}

std::unique_ptr<Model> made(const char *data, unsigned int seed, std::ostream &said) {
  auto model = std::make_unique<Model>();
  const std::string text = data ? data : "";
  if (text.empty()) {
    stan::io::empty_var_context none;
    model->stan.reset(&new_model(none, seed, &said));
  } else {
    std::istringstream stream(text);
    stan::json::json_data variables(stream);
    model->stan.reset(&new_model(variables, seed, &said));
  }
  model->name = model->stan->model_name();
  for (const auto &line : model->stan->model_compile_info()) model->info += line + "\n";
  model->info += "STAN_THREADS=true\n";
  std::vector<std::string> names;
  model->stan->unconstrained_param_names(names, false, false);
  model->unconstrained = joined(names);
  for (int k = 0; k < 4; ++k) {
    names.clear();
    model->stan->constrained_param_names(names, k & 1, k & 2);
    model->constrained[k] = joined(names);
    model->num[k] = static_cast<int>(names.size());
  }
  return model;
}

}  // namespace whmc

extern "C" {
extern __attribute__((visibility("default"))) const int bs_major_version, bs_minor_version, bs_patch_version;
const int bs_major_version = WHMC_BRIDGESTAN_MAJOR;
const int bs_minor_version = WHMC_BRIDGESTAN_MINOR;
const int bs_patch_version = WHMC_BRIDGESTAN_PATCH;
}

WHMC_API whmc::Model *bs_model_construct(const char *data, unsigned int seed, char **message) {
  std::unique_ptr<whmc::Model> model;
  whmc::guarded(message, [&](std::ostream &said) { model = whmc::made(data, seed, said); });
  return model.release();
}

WHMC_API void bs_model_destruct(whmc::Model *model) { delete model; }

WHMC_API void bs_free_error_msg(char *message) { free(message); }

WHMC_API int bs_set_print_callback(whmc::Print callback, char **) {
  whmc::print = callback;
  return 0;
}

WHMC_API const char *bs_name(const whmc::Model *model) { return model->name.c_str(); }

WHMC_API const char *bs_model_info(const whmc::Model *model) { return model->info.c_str(); }

WHMC_API const char *bs_param_names(const whmc::Model *model, bool transformed, bool generated) {
  return model->constrained[whmc::which(transformed, generated)].c_str();
}

WHMC_API const char *bs_param_unc_names(const whmc::Model *model) { return model->unconstrained.c_str(); }

WHMC_API int bs_param_num(const whmc::Model *model, bool transformed, bool generated) {
  return model->num[whmc::which(transformed, generated)];
}

WHMC_API int bs_param_unc_num(const whmc::Model *model) { return static_cast<int>(model->stan->num_params_r()); }

WHMC_API int bs_log_density(const whmc::Model *model, bool propto, bool jacobian, const double *position, double *value,
                            char **message) {
  return whmc::guarded(message, [&](std::ostream &said) {
    Eigen::VectorXd gradient, place = whmc::vector(position, model->stan->num_params_r());
    *value = whmc::value_and_gradient(*model->stan, propto, jacobian, place, gradient, said);
  });
}

WHMC_API int bs_log_density_gradient(const whmc::Model *model, bool propto, bool jacobian, const double *position,
                                     double *value, double *gradient, char **message) {
  return whmc::guarded(message, [&](std::ostream &said) {
    Eigen::VectorXd slope, place = whmc::vector(position, model->stan->num_params_r());
    *value = whmc::value_and_gradient(*model->stan, propto, jacobian, place, slope, said);
    Eigen::VectorXd::Map(gradient, slope.size()) = slope;
  });
}

WHMC_API int bs_param_constrain(const whmc::Model *model, bool transformed, bool generated, const double *position,
                                double *values, whmc::Rng *rng, char **message) {
  return whmc::guarded(message, [&](std::ostream &said) {
    auto own = stan::services::util::create_rng(0, 1);
    Eigen::VectorXd found, place = whmc::vector(position, model->stan->num_params_r());
    model->stan->write_array(rng ? *rng : own, place, found, transformed, generated, &said);
    Eigen::VectorXd::Map(values, found.size()) = found;
  });
}

WHMC_API int bs_param_unconstrain(const whmc::Model *model, const double *values, double *position, char **message) {
  return whmc::guarded(message, [&](std::ostream &said) {
    Eigen::VectorXd place;
    model->stan->unconstrain_array(whmc::vector(values, model->num[0]), place, &said);
    Eigen::VectorXd::Map(position, place.size()) = place;
  });
}

WHMC_API whmc::Rng *bs_rng_construct(unsigned int seed, char **) {
  return new whmc::Rng(stan::services::util::create_rng(seed, 1));
}

WHMC_API void bs_rng_destruct(whmc::Rng *rng) { delete rng; }

// The rest of BridgeStan's interface is looked up by its Python package, and never called by whmc.
WHMC_API int bs_log_density_hessian() { return 1; }
WHMC_API int bs_log_density_hessian_vector_product() { return 1; }
WHMC_API int bs_param_unconstrain_json() { return 1; }
WHMC_API int bs_param_initialize() { return 1; }
