"""AWS Fargate and the AWS utilities, through boto3 and moto."""
