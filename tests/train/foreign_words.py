"""Arguments, methods and hooks of other libraries' trainers, as in their documentation."""

from __future__ import annotations

LIBRARIES = {
    "Lightning": (
        """max_epochs min_epochs max_steps min_steps max_time limit_train_batches limit_val_batches limit_test_batches
        overfit_batches val_check_interval check_val_every_n_epoch num_sanity_val_steps log_every_n_steps precision
        enable_checkpointing enable_progress_bar enable_model_summary accumulate_grad_batches gradient_clip_val
        gradient_clip_algorithm deterministic benchmark inference_mode use_distributed_sampler profiler detect_anomaly
        plugins sync_batchnorm default_root_dir accelerator strategy devices num_nodes logger callbacks fast_dev_run
        ckpt_path datamodule train_dataloaders val_dataloaders on_train_start on_fit_start on_train_epoch_end
        on_validation_end on_train_batch_end on_exception""",
        """validate test save_checkpoint log log_dict configure_optimizers training_step validation_step
        manual_backward toggle_optimizer global_step current_epoch is_global_zero should_stop callback_metrics""",
    ),
    "Keras": (
        """optimizer loss loss_weights metrics weighted_metrics run_eagerly steps_per_execution jit_compile x y
        batch_size epochs verbose callbacks validation_split validation_data shuffle class_weight sample_weight
        initial_epoch steps_per_epoch validation_steps validation_batch_size validation_freq on_train_begin on_epoch_end
        on_batch_end min_delta patience restore_best_weights""",
        """compile fit evaluate predict train_on_batch test_on_batch predict_on_batch summary save save_weights
        load_weights get_weights set_weights get_layer layers add stop_training""",
    ),
    "skorch": (
        """module criterion optimizer lr max_epochs batch_size iterator_train iterator_valid dataset train_split
        callbacks predict_nonlinearity warm_start verbose device compile use_caching""",
        "partial_fit predict_proba score save_params load_params initialize get_params set_params",
    ),
    "accelerate": (
        """device_placement split_batches mixed_precision gradient_accumulation_steps cpu dataloader_config
        deepspeed_plugin fsdp_plugin rng_types log_with project_dir step_scheduler_with_optimizer kwargs_handlers
        dynamo_backend even_batches""",
        """prepare backward gather gather_for_metrics clip_grad_norm_ save_state load_state
        wait_for_everyone is_main_process unwrap_model reduce free_memory skip_first_batches autocast""",
    ),
    "Hugging Face": (
        """output_dir num_train_epochs per_device_train_batch_size per_device_eval_batch_size eval_strategy
        save_strategy save_steps save_total_limit logging_steps logging_dir learning_rate weight_decay warmup_steps
        warmup_ratio lr_scheduler_type max_grad_norm seed fp16 bf16 dataloader_num_workers dataloader_drop_last
        dataloader_pin_memory
        load_best_model_at_end metric_for_best_model greater_is_better label_smoothing_factor optim group_by_length
        report_to run_name resume_from_checkpoint gradient_checkpointing torch_compile ddp_find_unused_parameters
        remove_unused_columns data_collator compute_metrics model_init auto_find_batch_size local_rank deepspeed fsdp
        adam_beta1 ignore_data_skip eval_dataset train_dataset""",
        """train save_model add_callback hyperparameter_search compute_loss get_train_dataloader create_optimizer
        is_world_process_zero""",
    ),
    "Apex": (
        """opt_level loss_scale keep_batchnorm_fp32 master_weights cast_model_type patch_torch_functions num_losses
        min_loss_scale max_loss_scale cast_model_outputs delay_allreduce message_size gradient_average
        allreduce_always_fp32 convert_syncbn_model""",
        "scale_loss",
    ),
    "Paddle": (
        """train_data eval_data eval_freq log_freq save_dir save_freq drop_last num_workers num_iters amp_configs
        distributed_batch_reader selected_gpus""",
        "train_batch eval_batch predict_batch parameters apply_collective_grads",
    ),
    "MXNet": (
        """eval_metric epoch_end_callback batch_end_callback kvstore optimizer_params eval_end_callback
        eval_batch_end_callback initializer arg_params aux_params allow_missing force_rebind force_init begin_epoch
        num_epoch validation_metric monitor sparse_row_id_fn event_handlers ctx batchify_fn""",
        """bind init_params init_optimizer forward_backward update update_metric get_outputs""",
    ),
}
